"""Clocks beside an accelerator, which works on after a call has returned."""

import time

import torch


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def clock_s(device: torch.device) -> float:
    """The time once the device has finished, s, from an arbitrary start."""
    synchronise(device)
    return time.perf_counter()
