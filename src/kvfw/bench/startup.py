"""Times commands and loading of a model, in processes of their own."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from kvfw.bench.clock import Tell, rounds
from kvfw.bench.process import run_python

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
    """Median seconds from start to exit of a command, and for loading the model a second time.

    Attributes:
        help_s: of ``kvfw --help``.
        list_s: of ``kvfw list``.
        load_s: of a second load in the same process: the first one includes transformers' imports.
    """

    help_s: float
    list_s: float
    load_s: float


def starting(model: str, repeats: int, tell: Tell) -> Starting:
    """Times commands and loading.

    Raises:
        RunError: a timed process failed.
    """

    def typical(what: str, once: Callable[[], float]) -> float:
        taken = []
        for say in rounds(tell, repeats):
            say(what)
            taken.append(once())
        return median(taken)

    loading = ("-c", LOADING.format(model))
    return Starting(
        help_s=typical("kvfw --help", partial(_command_s, "--help")),
        list_s=typical("kvfw list", partial(_command_s, "list")),
        load_s=typical("loading", lambda: float(run_python("loading the model", *loading).splitlines()[-1])),
    )


def _command_s(command: str) -> float:
    """Time of ``kvfw COMMAND`` from start to exit."""
    started = time.perf_counter()
    run_python(f"kvfw {command}, which was to be timed,", "-m", "kvfw", command)
    return time.perf_counter() - started
