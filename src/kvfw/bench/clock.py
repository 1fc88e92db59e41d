"""Times of work on any device, and what is being timed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kvfw.model.compat.clock import clock_s, synchronise

Tell = Callable[[str], None]


def rounds(tell: Tell, repeats: int, *, warm_up: bool = False) -> Iterator[Tell]:
    """For every round of a measurement what announces its steps; a step is announced before its clock starts."""
    for turn in range(0 if warm_up else 1, repeats + 1):

        def say(step: str, when: str = f"round {turn} of {repeats}" if turn else "warm-up") -> None:
            tell(f"{when}: {step}")

        yield say


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes: device events on CUDA, the wall clock elsewhere, once the device has finished."""
    if device.type == "cuda":
        # torch.cuda.Event has no annotations.
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        # Events belong to the current device's stream.
        with torch.cuda.device(device):
            begin.record()
            work()
            end.record()
        synchronise(device)
        return float(begin.elapsed_time(end)) / 1000
    started = clock_s(device)
    work()
    return clock_s(device) - started


def ratios(tops: Sequence[float], bottoms: Sequence[float]) -> list[float]:
    """Ratios of what was timed in the same round, so that a slow round touches both."""
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=True)]
