"""How many of each head's scores lie among the highest of all heads."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def counts_above_threshold(scores: Float[Tensor, "B rows N"], total: Int64[Tensor, " B"]) -> Int64[Tensor, "B rows"]:
    """How many of the ``total`` highest scores of a batch row each of its rows holds; ties to the lower row and slot.

    Args:
        scores: minus infinity for slots that may not be counted; at least ``total`` others.
        total: how many to count.
    """
    most = int(total.max()) if total.numel() else 0
    flat = scores.flatten(1)
    if most == 0:
        return torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
    least = flat.topk(most, dim=-1).values.gather(1, (total - 1).clamp(min=0)[:, None])
    above = (flat > least) & (total > 0)[:, None]
    level = (flat == least) & (flat > -torch.inf)
    room = total[:, None] - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1) <= room))
    return chosen.view(scores.shape).sum(-1)
