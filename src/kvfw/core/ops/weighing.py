"""Scores that are multiplied by something else, and therefore must not be negative."""

from jaxtyping import Bool, Float, Float32
from torch import Tensor

from kvfw.errors import RunError


def weighable(scores: Float[Tensor, "B Hkv N"], where: Bool[Tensor, "B Hkv N"], who: str) -> Float32[Tensor, "B Hkv N"]:
    """The scores in float32. A weight would rank negative ones the wrong way round.

    Args:
        scores: to be multiplied.
        where: the slots whose scores count.
        who: the part that multiplies them, for the error.

    Raises:
        RunError: a score that counts is negative.
    """
    least = scores.masked_fill(~where, 0.0).amin() if scores.numel() else None
    if least is not None and float(least) < 0:
        raise RunError(
            f"{who} multiplies scores, and its scorer gives negative ones (down to {float(least):.4g}), which a larger "
            "factor would rank lower; use a scorer whose scores are 0 or more, such as attention"
        )
    return scores.float()
