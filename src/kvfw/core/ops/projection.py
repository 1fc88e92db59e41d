"""Values after the output projection, without computing them."""

from jaxtyping import Float, Float32
from torch import Tensor


def projected_norms(
    values: Float[Tensor, "B Hkv N Dv"], projection: Float[Tensor, "out in"]
) -> Float32[Tensor, "B Hkv g N"]:
    """``||W_o^h v_j||_2`` for every query head h of each KV head.

    Computed as ``sqrt(v^T (W^T W) v)``: O(N Dv^2) per head instead of O(N Dv out).

    Args:
        values: as cached.
        projection: weight of the output projection; query head h has columns h Dv to (h + 1) Dv.
    """
    heads, dim = values.shape[1], values.shape[-1]
    weight = projection.float().reshape(projection.shape[0], heads, -1, dim).permute(1, 2, 3, 0)
    grouped = values.float()[:, :, None]
    along = grouped @ (weight @ weight.transpose(-1, -2))
    return (along * grouped).sum(-1).clamp(min=0).sqrt()
