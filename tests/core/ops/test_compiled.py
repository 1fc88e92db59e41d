"""Compiled loops where nothing may be written, and what they promise about threads."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from kvfw.core import ops
from kvfw.core.ops import compiled


def doubled(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = 2 * values[i]


def test_without_a_folder_to_write_to_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit
    asked = list[bool]()

    def nowhere(*given: Any, cache: bool = False, **options: Any) -> Callable[..., Any]:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'doubled': no locator available for file 'test_compiled.py'")
        decorated: Callable[..., Any] = njit(*given, **options)
        return decorated

    monkeypatch.setattr(numba, "njit", nowhere)
    fast = compiled.machine_code(doubled)
    out = np.empty(3)
    fast(np.arange(3.0), out)
    assert out.tolist() == [0.0, 2.0, 4.0]
    # numba itself asks for more while it compiles.
    assert asked[:2] == [True, False]


MODULES = [importlib.import_module(each.name) for each in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}.")]
LOOPS = {
    f"{module.__name__}.{name}": loop
    for module in MODULES
    for name, loop in vars(module).items()
    if isinstance(loop, Dispatcher) and loop.py_func.__module__ == module.__name__
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_leave_pythons_lock_alone_and_add_up_as_written(name: str) -> None:
    options = LOOPS[name].targetoptions
    assert options["nogil"]
    assert not options.get("fastmath")


def test_every_loop_was_found() -> None:
    decorated = sum(inspect.getsource(module).count("\n@machine_code\n") for module in MODULES)
    assert len(LOOPS) == decorated > 0
