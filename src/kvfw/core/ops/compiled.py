"""Loops that torch has no single operation for, compiled for the CPU by numba at their first call: what they share.

A row of small torch operations reads a large tensor once each, and takes and gives back Python's lock at every one, so
that two layers compressed side by side wait for each other. A loop reads it once, and leaves the lock alone while it
runs. Without numba's ``fastmath`` nothing is reordered or contracted: results are the same on every machine.

A loop does not look whether an index is within bounds; who calls it does.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Reals = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


def machine_code(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function as machine code, kept on disk for the next process.

    Where numba finds no folder to write to (the one of this file, the user's cache), every process compiles anew.
    """
    try:
        fast = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:
        fast = numba.njit(nogil=True, error_model="numpy")(function)
    return cast(Callable[Parameters, Result], fast)


def serves(*tensors: Tensor) -> bool:
    """Whether loops can stand in for torch's operations: on a CPU, and where no gradient flows."""
    return all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors)
