"""One order of a row's slots, which all its heads follow. Everything has a dimension of one head."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from kvfw.core.ops.topk import highest


def over_heads(scores: Float[Tensor, "B Hkv N"], eligible: Bool[Tensor, "B Hkv N"]) -> Float64[Tensor, "B 1 N"]:
    """Mean of every slot's scores over the heads in which it is eligible; 0 where it is in none."""
    total = scores.double().masked_fill(~eligible, 0.0).sum(1, keepdim=True)
    mean = total / eligible.sum(1, keepdim=True).clamp(min=1)
    return mean.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def in_order(
    order: Float64[Tensor, "B 1 N"], budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
) -> Bool[Tensor, "B Hkv N"]:
    """Every head's first ``budget`` eligible slots in one order of the row's slots, lowest first."""
    return highest(-order.expand(eligible.shape), budget, eligible)
