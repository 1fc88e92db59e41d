"""CPU loops for which torch has no single operation, compiled by numba at their first call.

A chain of small torch operations reads a large tensor once per operation and takes Python's lock for each, so layers
compressed side by side wait for each other. A loop reads it once and releases the lock while it runs. Without numba's
``fastmath`` nothing is reordered or contracted: results are the same on every machine.

Loops do not check bounds; their callers must.
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
    """Compiles the function to machine code, cached on disk (this file's folder or the user's cache) if writable."""
    try:
        fast = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:
        fast = numba.njit(nogil=True, error_model="numpy")(function)
    return cast(Callable[Parameters, Result], fast)


def serves(*tensors: Tensor) -> bool:
    """Whether the loops can handle these tensors: all on a CPU, and no gradient flows."""
    return all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors)
