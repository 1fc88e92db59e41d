"""Work side by side: several threads give what one gives, and leave torch as it was."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from threading import Barrier

import pytest
import torch

from kvfw.core.parallel import at_once

CPU = torch.device("cpu")


@pytest.mark.usefixtures("two_threads")
def test_two_items_are_worked_on_at_once_each_with_one_thread() -> None:
    met = Barrier(2, timeout=60)

    def work(item: int) -> tuple[int, int]:
        # Nobody gets past here alone.
        met.wait()
        return item, torch.get_num_threads()

    assert at_once(work, range(6), CPU) == [(item, 1) for item in range(6)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_are_divided_among_fewer_items() -> None:
    torch.set_num_threads(5)
    met = Barrier(2, timeout=60)

    def work(_: int) -> int:
        met.wait()
        return torch.get_num_threads()

    assert at_once(work, range(2), CPU) == [2, 2]
    assert torch.get_num_threads() == 5


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("items", [1, 4])
def test_modes_are_those_of_who_asks(items: int) -> None:
    def modes(_: int) -> tuple[bool, bool]:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    with torch.inference_mode():
        assert set(at_once(modes, range(items), CPU)) == {(True, False)}
    with torch.no_grad():
        assert set(at_once(modes, range(items), CPU)) == {(False, False)}
    assert set(at_once(modes, range(items), CPU)) == {(False, True)}


@pytest.mark.usefixtures("two_threads")
def test_an_item_that_fails_stops_the_rest_and_leaves_the_threads() -> None:
    begun = list[int]()

    def work(item: int) -> int:
        begun.append(item)
        if item > 0:
            time.sleep(0.02)
            return item
        raise ValueError("item 0 has no keys")

    with pytest.raises(ValueError, match="item 0 has no keys"):
        at_once(work, range(500), CPU)
    assert len(begun) < 500
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_of_two_errors_the_first_items_is_raised() -> None:
    met = Barrier(2, timeout=60)

    def work(item: int) -> int:
        met.wait()
        time.sleep(0.05 * (1 - item))
        raise ValueError(f"item {item} has no keys")

    with pytest.raises(ValueError, match="item 0 has no keys"):
        at_once(work, range(2), CPU)


@pytest.mark.usefixtures("two_threads")
def test_a_thread_that_begins_meanwhile_has_all_of_torchs_threads() -> None:
    """What one asks of torch for itself is also what the process's next thread starts with."""
    seen = list[int]()
    begun, met = threading.Event(), Barrier(2, timeout=60)

    def elsewhere() -> None:
        begun.wait(60)
        # By now whoever asked for the work has been told that all have begun.
        time.sleep(0.2)
        seen.append(torch.get_num_threads())

    def work(item: int) -> int:
        met.wait()
        begun.set()
        other.join()
        # Nor does one's own number change with the process's.
        return torch.get_num_threads()

    other = threading.Thread(target=elsewhere)
    other.start()
    assert at_once(work, range(2), CPU) == [1, 1]
    assert seen == [2]


INTERRUPTED = """
import _thread, time, torch
from kvfw.core.parallel import at_once
torch.set_num_threads(2)
begun = []
def work(item):
    begun.append(item)
    if item == 1:
        _thread.interrupt_main()
    time.sleep(0.05)
try:
    at_once(work, range(400), torch.device("cpu"))
except KeyboardInterrupt:
    print(len(begun) < 400, torch.get_num_threads())
"""

AFTERWARDS = """
import threading, time, torch
from kvfw.core.parallel import at_once
torch.set_num_threads(2)
def late():
    threading.main_thread().join()
    print(at_once(lambda item: item + 1, range(4), torch.device("cpu")))
threading.Thread(target=late).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"), [(INTERRUPTED, "True 2"), (AFTERWARDS, "[1, 2, 3, 4]")], ids=["interrupted", "main ended"]
)
def test_whatever_becomes_of_the_main_thread(script: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == (said, "")
