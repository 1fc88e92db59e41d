"""How long commands take to answer and the embedded model to load, in processes of their own."""

import subprocess
import sys
import time
from statistics import median

LOADING = """
import time
from kvfw.model.load import load_model
started = time.perf_counter()
load_model({!r})
print(time.perf_counter() - started)
"""


def command_s(arguments: list[str], repeats: int) -> float:
    """Median time of ``kvfw ARGUMENTS``, from start to exit."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kvfw", *arguments], capture_output=True, check=True)
        taken.append(time.perf_counter() - started)
    return median(taken)


def load_s(model: str, repeats: int) -> float:
    """Median time of loading a model whose files are there already, imports left out."""
    done = [
        subprocess.run([sys.executable, "-c", LOADING.format(model)], capture_output=True, text=True, check=True)
        for _ in range(repeats)
    ]
    return median(float(one.stdout.splitlines()[-1]) for one in done)
