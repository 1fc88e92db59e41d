"""Times work on any device, and reports what is being timed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kvfw.model.compat.clock import clock_s, synchronise

Tell = Callable[[str], None]


def rounds(tell: Tell, repeats: int, *, warm_up: bool = False) -> Iterator[Tell]:
    """For every round of a measurement a function that announces its steps, each before its clock starts."""
    for turn in range(0 if warm_up else 1, repeats + 1):

        def say(step: str, when: str = f"round {turn} of {repeats}" if turn else "warm-up") -> None:
            tell(f"{when}: {step}")

        yield say


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Time until the device has finished the work: by device events on CUDA, by the wall clock elsewhere."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event  # it has no annotations
        begin, end = event(enable_timing=True), event(enable_timing=True)
        with torch.cuda.device(device):  # events belong to the current device's stream
            begin.record()
            work()
            end.record()
        synchronise(device)
        return float(begin.elapsed_time(end)) / 1000
    started = clock_s(device)
    work()
    return clock_s(device) - started


def ratios(tops: Sequence[float], bottoms: Sequence[float]) -> list[float]:
    """Ratios within each round, so that a slow round affects both times."""
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=True)]
