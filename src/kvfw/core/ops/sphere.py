"""Random rotations, and the best codes for a coordinate of a random point on the unit sphere."""

from functools import lru_cache
from typing import Final

import torch
from jaxtyping import Float32
from torch import Tensor

#: Points at which the density of a coordinate is sampled.
_POINTS: Final = 2**14
#: Rounds of Lloyd's iteration at most, and the change at which it ends.
_ROUNDS: Final = 5000
_CLOSE: Final = 1e-8


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
    top = min(1.0, 12 / dim**0.5)  # beyond which there is next to nothing
    x = ((torch.arange(_POINTS, dtype=torch.float64) + 0.5) * (2 / _POINTS) - 1) * top
    density = ((dim - 3) / 2 * (1 - x.square()).log()).softmax(0)
    sums = torch.nn.functional.pad(torch.stack((density, density * x)).cumsum(-1), (1, 0))
    levels = 2**bits
    # Begins with the middles of intervals of equal probability.
    codes = x[torch.searchsorted(sums[0, 1:], (torch.arange(levels, dtype=torch.float64) + 0.5) / levels)]
    for _ in range(_ROUNDS):
        ends = ((codes[1:] + codes[:-1]) / 2 / top + 1) * (_POINTS / 2)
        at = torch.cat((ends.new_zeros(1), ends, ends.new_full((1,), _POINTS)))
        low = at.long().clamp(max=_POINTS - 1)
        mass, moment = (sums[:, low] + (at - low) * (sums[:, low + 1] - sums[:, low])).diff(dim=-1)
        before, codes = codes, moment / mass
        if float((codes - before).abs().max()) < _CLOSE * top:
            break
    symmetric: Tensor = (codes - codes.flip(0)) / 2
    return symmetric.float()
