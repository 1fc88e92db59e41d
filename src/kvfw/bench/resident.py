"""The most memory a process held during a block, above what it held before."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Resident:
    """Context manager; ``peak_bytes`` is known afterwards.

    CUDA: allocated bytes. Linux: the resident set, whose high-water mark the kernel lets a process reset. Elsewhere:
    growth of the process's all-time high, which is too low if more was held before.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.peak_bytes = 0
        self._resets = False

    def __enter__(self) -> Self:
        self._resets = _reset()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        elif self._resets:
            self._before = _resident("VmRSS")
        else:
            self._before = _all_time_high()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
        elif self._resets:
            peak = _resident("VmHWM")
        else:
            peak = _all_time_high()
        self.peak_bytes = peak - self._before


def _reset() -> bool:
    """Resets the resident set's high-water mark to what is resident now; False where the kernel does not let us."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _resident(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _all_time_high() -> int:
    import resource  # there is none on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
