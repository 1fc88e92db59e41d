"""Values after the output projection, without computing them."""

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def projected_norms(
    values: Float[Tensor, "B Hkv N Dv"], projection: Float[Tensor, "out in"], norm: Literal["l2", "l1"] = "l2"
) -> Float32[Tensor, "B Hkv g N"]:
    """``||W_o^h v_j||`` for every query head h of each KV head.

    The L2 norm is computed as ``sqrt(v^T (W^T W) v)``: O(N Dv^2) per head. The L1 norm has no such form: O(N Dv out),
    with the projected values of one query head of each KV head at a time in memory.

    Args:
        values: as cached.
        projection: weight of the output projection; query head h has columns h Dv to (h + 1) Dv.
        norm: which norm.
    """
    heads, dim = values.shape[1], values.shape[-1]
    weight = projection.float().reshape(projection.shape[0], heads, -1, dim).permute(1, 2, 3, 0)
    if norm == "l1":
        each = [(values.float() @ weight[:, h]).abs().sum(-1) for h in range(weight.shape[1])]
        return torch.stack(each, dim=2)
    grouped = values.float()[:, :, None]
    along = grouped @ (weight @ weight.transpose(-1, -2))
    return (along * grouped).sum(-1).clamp(min=0).sqrt()
