"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) at any real position, by computed angles.

A model caches ``k' = a R(p) k``: the rotary slice of the key turned by the angles ``p * inv_freq`` and scaled by the
attention factor ``a`` (1 except for YaRN and LongRoPE). The inverse is ``k = R(-p) k' / a``. All in float32: positions
held in half precision collapse (2049 becomes 2048).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

Layout = Literal["half", "interleaved"]
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")


@dataclass(frozen=True)
class Rope:
    """How one layer's keys are rotated.

    Args:
        inv_freq: inverse frequencies in force when the keys were written, one per rotated pair.
        scaling: attention factor ``a`` on the rotated slice.
        layout: which coordinates form a pair: ``half`` pairs i with i + D/2, ``interleaved`` pairs 2i with 2i + 1.
    """

    inv_freq: Float32[Tensor, " pairs"]
    scaling: float = 1.0
    layout: Layout = "half"

    @property
    def rotary_dim(self) -> int:
        """Number of leading coordinates of a head that are rotated; the others are not."""
        return 2 * self.inv_freq.shape[0]


def alike(first: Rope | None, second: Rope | None) -> bool:
    """Whether two layers' keys are rotated in the same way."""
    if first is None or second is None:
        return first is second
    same = (first.scaling, first.layout) == (second.scaling, second.layout)
    return same and torch.equal(first.inv_freq, second.inv_freq)


def rotate(
    keys: Float[Tensor, "B H N D"], positions: Float32[Tensor, "B heads N"], rope: Rope
) -> Float32[Tensor, "B H N D"]:
    """``a R(p) k`` in float32, each slot at its own, possibly fractional, position; H = 1 for the same in all heads."""
    return _turn(keys.float(), positions, rope, rope.scaling)


def unrotate(
    keys: Float[Tensor, "B H N D"], positions: Float32[Tensor, "B heads N"], rope: Rope
) -> Float32[Tensor, "B H N D"]:
    """``R(-p) k' / a`` in float32: undoes :func:`rotate` at the same positions."""
    return _turn(keys.float(), -positions, rope, 1.0 / rope.scaling)


def _turn(
    x: Float32[Tensor, "B H N D"], positions: Float32[Tensor, "B heads N"], rope: Rope, scale: float
) -> Float32[Tensor, "B H N D"]:
    angles = positions[..., None] * rope.inv_freq.to(x.device)
    cos, sin = angles.cos(), angles.sin()
    if scale != 1:
        cos, sin = cos * scale, sin * scale
    turned, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
    halves = rope.layout == "half"
    first, second = turned.chunk(2, dim=-1) if halves else (turned[..., 0::2], turned[..., 1::2])
    new = (first * cos).sub_(second * sin), (second * cos).add_(first * sin)
    return torch.cat((*new, rest) if halves else (torch.stack(new, dim=-1).flatten(-2), rest), dim=-1)
