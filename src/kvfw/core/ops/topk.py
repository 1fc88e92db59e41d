"""Ranking with ties to the lowest slot, which torch.topk does not promise."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def rank(scores: Float[Tensor, "B Hkv N"], eligible: Bool[Tensor, "B Hkv N"]) -> Int64[Tensor, "B Hkv N"]:
    """Rank of every slot among the eligible ones of its head: 0 has the highest score, ties to the lowest slot.

    Slots that are not eligible rank after all eligible ones, whatever their score.
    """
    # Eligibility decides first: a huge or infinite score never lets a protected slot in.
    order = scores.masked_fill(~eligible, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    if bool(((scores == -torch.inf) & eligible).any()):
        by_eligibility = (~eligible).gather(-1, order).to(torch.uint8).argsort(dim=-1, stable=True)
        order = order.gather(-1, by_eligibility)
    ranks = torch.empty_like(order)
    return ranks.scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
