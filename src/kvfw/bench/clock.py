"""Times of work on any device."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes: device events on CUDA, the wall clock elsewhere, once the device has finished."""
    if device.type == "cuda":
        # torch.cuda.Event has no annotations.
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1000
    if device.type == "mps":
        torch.mps.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - started


def median_ratio(tops: list[float], bottoms: list[float]) -> float:
    """Median of the ratios of what was timed in the same round, so that a slow round touches both."""
    return median(top / bottom for top, bottom in zip(tops, bottoms, strict=True))
