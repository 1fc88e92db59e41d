"""Measures the peak memory of a block, less what the process held before."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import torch

from kvfw.model.compat.clock import synchronise

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Resident:
    """Context manager; sets ``peak_bytes`` on exit.

    CUDA: allocated bytes. Linux: the resident set, whose high-water mark a process can reset. Elsewhere: growth of the
    process's all-time high, which is too low if the process held more before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        held, self._most = _gauges(self._device)
        self._before = held()
        return self

    def __exit__(self, *error: object) -> None:
        synchronise(self._device)
        self.peak_bytes = self._most() - self._before


def _gauges(device: torch.device) -> tuple[Callable[[], int], Callable[[], int]]:
    """Functions that return the bytes held now, and the most held from this call on."""
    if device.type == "cuda":
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        return partial(torch.cuda.memory_allocated, device), partial(torch.cuda.max_memory_allocated, device)
    if _reset():
        return partial(_resident, "VmRSS"), partial(_resident, "VmHWM")
    return _all_time_high, _all_time_high


def _reset() -> bool:
    """Resets the resident set's high-water mark to its present size; False where the kernel does not allow it."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _resident(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _all_time_high() -> int:
    import resource  # Windows does not have it

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
