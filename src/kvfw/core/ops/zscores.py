"""Scores in standard deviations."""

from jaxtyping import Bool, Float, Float32
from torch import Tensor


def zscores(scores: Float[Tensor, "B Hkv N"], counted: Bool[Tensor, "B Hkv N"]) -> Float32[Tensor, "B Hkv N"]:
    """``(s - mean) / std`` over the counted slots of all heads of a row, unbiased std; 0 for the others.

    A std below 1e-6 counts as 1e-6, so that equal scores stay equal.
    """
    inside = scores.float().masked_fill(~counted, 0.0)
    count = counted.sum((1, 2), keepdim=True)
    away = (inside - inside.sum((1, 2), keepdim=True) / count.clamp(min=1)).masked_fill(~counted, 0.0)
    std = (away.square().sum((1, 2), keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return away / std.clamp(min=1e-6)
