"""How long commands take to answer and the embedded model to load, in processes of their own."""

import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

from kvfw.errors import RunError

LOADING = """
import time
from kvfw.model.load.load import load_model
load_model({0!r})
started = time.perf_counter()
load_model({0!r})
print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Starting:
    """Seconds from start to exit of a command, or for loading the model a second time; medians.

    Attributes:
        help_s: of ``kvfw --help``.
        list_s: of ``kvfw list``.
        load_s: of loading the model again in a process that has loaded it: the first pays for transformers' imports.
    """

    help_s: float
    list_s: float
    load_s: float


def starting(model: str, repeats: int) -> Starting:
    """Times commands and loading.

    Raises:
        RunError: a process that was to be timed failed.
    """
    return Starting(_command_s("--help", repeats), _command_s("list", repeats), _load_s(model, repeats))


def _command_s(command: str, repeats: int) -> float:
    """Median time of ``kvfw COMMAND``, from start to exit."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        _python("-m", "kvfw", command)
        taken.append(time.perf_counter() - started)
    return median(taken)


def _load_s(model: str, repeats: int) -> float:
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
