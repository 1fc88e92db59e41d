"""What the process around a part looks like, to see whether the part changes or depends on it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Surroundings:
    """State of a process that results must not depend on."""

    torch_rng: Tensor
    python_rng: Any
    numpy_rng: Any
    threads: int
    dtype: torch.dtype
    grad: bool


def surroundings() -> Surroundings:
    """As they are now."""
    return Surroundings(
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state(),  # the legacy generator is the one that parts share
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


def changed(before: Surroundings, after: Surroundings) -> list[str]:
    """What is no longer as it was, in words."""
    numpy_same = all(np.array_equal(a, b) for a, b in zip(before.numpy_rng, after.numpy_rng, strict=True))
    found = {
        "torch's global random generator": not torch.equal(before.torch_rng, after.torch_rng),
        "Python's global random generator": before.python_rng != after.python_rng,
        "NumPy's global random generator": not numpy_same,
        "torch's number of threads": before.threads != after.threads,
        "torch's default dtype": before.dtype is not after.dtype,
        "whether gradients are recorded": before.grad != after.grad,
    }
    return [name for name, differs in found.items() if differs]


@contextmanager
def restored() -> Iterator[None]:
    """Puts everything back on exit, whatever ran inside."""
    before = surroundings()
    try:
        yield
    finally:
        torch.set_rng_state(before.torch_rng)
        random.setstate(before.python_rng)
        np.random.set_state(before.numpy_rng)
        if torch.get_num_threads() != before.threads:
            torch.set_num_threads(before.threads)
        torch.set_default_dtype(before.dtype)
        torch.set_grad_enabled(before.grad)


def reseed(seed: int) -> None:
    """Seeds every global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
