"""Whole numbers of slots from real amounts, with exact totals."""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

#: Amounts closer to a whole number than this are that number: they come from a few float64 operations.
NEARLY = 1e-6


def rounded(
    amounts: Float64[Tensor, "B n"], total: Int64[Tensor, " B"], most: Int64[Tensor, "B n"]
) -> Int64[Tensor, "B n"]:
    """Whole numbers near the amounts, in sum ``total``: largest remainder, ties to the earlier entry.

    Args:
        amounts: 0 or more, in sum ``total`` up to rounding, each at most ``most``.
        total: at most the sum of ``most``.
        most: the largest number an entry may have.
    """
    floors = (amounts + NEARLY).floor().to(torch.int64).clamp(min=0).minimum(most)
    missing = total - floors.sum(1)
    # A full entry comes last; remainders that differ by rounding alone are equal.
    remainder = ((amounts - floors) / NEARLY).round().masked_fill(floors >= most, -torch.inf)
    order = remainder.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return floors + (rank < missing[:, None])


def by_weight(
    weights: Float64[Tensor, "B n"],
    total: Int64[Tensor, " B"],
    most: Int64[Tensor, "B n"],
    least: Float64[Tensor, "B n"] | None = None,
) -> Int64[Tensor, "B n"]:
    """``total`` divided in proportion to the weights; what exceeds ``most`` is divided anew among the others.

    Entries of weight 0 get something only when all others are full. Rounding as in :func:`rounded`.

    Args:
        weights: 0 or more.
        total: at most the sum of ``most``.
        most: the largest number an entry may have.
        least: what every entry gets beforehand, as far as ``most`` allows; in sum at most ``total``. None for nothing.
    """
    limit = most.to(torch.float64)
    amounts = torch.zeros_like(weights) if least is None else least.minimum(limit)
    for _ in range(weights.shape[1] + 1):
        left = total.to(torch.float64) - amounts.sum(1)
        if bool((left < NEARLY).all()):
            break
        room = limit - amounts
        share = weights.masked_fill(room < NEARLY, 0.0)
        # Without a weighted entry that has room, all with room count the same.
        share = torch.where(share.sum(1, keepdim=True) > 0, share, (room >= NEARLY).to(torch.float64))
        amounts = (amounts + left[:, None] * share / share.sum(1, keepdim=True).clamp(min=1e-300)).minimum(limit)
    return rounded(amounts, total, most)
