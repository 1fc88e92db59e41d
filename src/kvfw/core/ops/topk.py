"""Top-k and ranking with ties to the lowest slot, which torch.topk does not guarantee."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def highest(
    scores: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
) -> Bool[Tensor, "B Hkv N"]:
    """The ``budget`` eligible slots of highest score in every head, ties to the lowest slot; all if there are fewer.

    Compares with the budget-th largest score, which takes a tenth of the time of ranking all slots.
    """
    # Eligibility decides first: a huge or infinite score never lets a protected slot in.
    among = scores.masked_fill(~eligible, -torch.inf)
    most = min(int(budget.max()), scores.shape[-1]) if budget.numel() else 0
    if most == 0:
        return torch.zeros_like(eligible)
    least = among.topk(most, dim=-1).values.gather(-1, (budget - 1).clamp(0, most - 1)[..., None])
    above = among > least
    level = eligible & (among == least)
    # With a budget of 0 ``least`` is the largest score: nothing is above it, and there is no room for its equals.
    room = budget[..., None] - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


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
