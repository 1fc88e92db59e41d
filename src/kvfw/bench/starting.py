"""How long commands take to answer and the embedded model to load, in processes of their own."""

import subprocess
import sys
import time
from statistics import median

from kvfw.errors import RunError

LOADING = """
import time
from kvfw.model.load import load_model
load_model({0!r})
started = time.perf_counter()
load_model({0!r})
print(time.perf_counter() - started)
"""


def command_s(arguments: list[str], repeats: int) -> float:
    """Median time of ``kvfw ARGUMENTS``, from start to exit."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        _python("-m", "kvfw", *arguments)
        taken.append(time.perf_counter() - started)
    return median(taken)


def load_s(model: str, repeats: int) -> float:
    """Median time of loading a model a second time in one process: the first pays for transformers' imports."""
    return median(float(_python("-c", LOADING.format(model)).splitlines()[-1]) for _ in range(repeats))


def _python(*arguments: str) -> str:
    """What a Python process printed.

    Raises:
        RunError: it failed; with the last line of what it said.
    """
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RunError(f"a process that was to be timed failed with exit code {done.returncode}: {said[-1]}")
    return done.stdout
