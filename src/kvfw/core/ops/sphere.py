"""Random rotations, and the best codes for a coordinate of a random point on the unit sphere."""

from functools import lru_cache
from typing import Final

import torch
from jaxtyping import Float32
from torch import Tensor

#: Points at which the density of a coordinate is sampled, and rounds of Lloyd's iteration, which ends by itself before.
_POINTS: Final = 2**17
_ROUNDS: Final = 10_000


@lru_cache(maxsize=512)
def rotation(dim: int, seed: int) -> Float32[Tensor, "dim dim"]:
    """A random rotation or reflection, uniform over all of them (Q of a Gaussian matrix, its signs those of R's)."""
    gaussian = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    turned: Tensor = q * r.diagonal().sign()
    return turned.float()


@lru_cache(maxsize=64)
def sphere_codebook(dim: int, bits: int) -> Float32[Tensor, " codes"]:
    """The ``2 ** bits`` numbers that code a coordinate of a uniform point on the sphere in ``dim`` dimensions best.

    They minimise the expected square of the error (Lloyd 1982; Max 1960) under the coordinate's density, which is in
    proportion to ``(1 - x^2) ** ((dim - 3) / 2)``. Ascending and symmetric.
    """
    x = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) * (2 / _POINTS) - 1
    density = ((dim - 3) / 2 * (1 - x.square()).log()).softmax(0)
    zero = torch.zeros(1, dtype=torch.float64)
    mass, moment = (torch.cat((zero, part.cumsum(0))) for part in (density, density * x))
    levels = 2**bits
    # Begins with the middles of intervals of equal probability.
    codes = x[torch.searchsorted(mass[1:], (torch.arange(levels, dtype=torch.float64) + 0.5) / levels)]
    for _ in range(_ROUNDS):
        ends = torch.searchsorted(x, (codes[1:] + codes[:-1]) / 2)
        ends = torch.cat((ends.new_zeros(1), ends, ends.new_full((1,), _POINTS)))
        means = moment[ends].diff() / mass[ends].diff().clamp(min=1e-300)
        if torch.equal(means, codes):
            break
        codes = means
    return ((codes - codes.flip(0)) / 2).float()
