"""Mean and scatter of vectors, added up block by block."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Moments of query vectors.

    Args:
        count: number of vectors of every row.
        mean: their mean.
        scatter: sum of the outer products of their deviations from it.
    """

    count: Float32[Tensor, " B"]
    mean: Float32[Tensor, "B H D"]
    scatter: Float32[Tensor, "B H D D"]

    @property
    def covariance(self) -> Float32[Tensor, "B H D D"]:
        """``scatter / count``."""
        return self.scatter / self.count.clamp(min=1)[:, None, None, None]

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "Moments":
        """The same with rows selected, reordered or repeated."""
        return Moments(change(self.count), change(self.mean), change(self.scatter))

    def __add__(self, other: "Moments") -> "Moments":
        """The moments of both sets of vectors (Chan, Golub, LeVeque 1979), without cancellation."""
        count = self.count + other.count
        weight = (other.count / count.clamp(min=1))[:, None, None]
        gap = other.mean - self.mean
        between = (self.count[:, None, None] * weight)[..., None] * gap[..., :, None] * gap[..., None, :]
        return Moments(count, self.mean + weight * gap, self.scatter + other.scatter + between)


def moments_of(vectors: Float[Tensor, "B H n D"], counted: Bool[Tensor, "B n"]) -> Moments:
    """Moments of the counted vectors, in float32."""
    inside = vectors.float() * counted[:, None, :, None]
    count = counted.sum(1).to(torch.float32)
    mean = inside.sum(2) / count.clamp(min=1)[:, None, None]
    away = (inside - mean[:, :, None]) * counted[:, None, :, None]
    return Moments(count, mean, away.transpose(-1, -2) @ away)
