"""Timing on accelerators, which keep working after a call has returned."""

import time

import torch


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def clock_s(device: torch.device) -> float:
    """The time once the device has finished, s, from an arbitrary start."""
    synchronise(device)
    return time.perf_counter()
