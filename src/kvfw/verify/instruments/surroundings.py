"""Process-wide state, to check that a part neither changes it nor depends on it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Surroundings:
    """Process-wide state that results must not depend on, as it is when an instance is made."""

    torch_rng: Tensor = field(default_factory=torch.get_rng_state)
    python_rng: Any = field(default_factory=random.getstate)
    numpy_rng: Any = field(default_factory=np.random.get_state)  # the legacy generator is the one that parts share
    threads: int = field(default_factory=torch.get_num_threads)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    grad: bool = field(default_factory=torch.is_grad_enabled)


def changed(before: Surroundings, after: Surroundings) -> list[str]:
    """Names of what changed."""
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
    """Restores the process-wide state on exit."""
    before = Surroundings()
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
