"""Statistical leverage of vectors."""

import torch
from jaxtyping import Float32
from torch import Tensor

from kvfw.core.ops.least_squares import precise


def leverages(
    x: Float32[Tensor, "B h N D"], weights: Float32[Tensor, "B h N"], ridge: float
) -> Float32[Tensor, "B h N"]:
    """``w_j x_j^T (ridge I + sum_i w_i x_i x_i^T)^-1 x_j``: from 0 to 1; without a ridge they sum to the rank.

    Exact, O(N D^2 + D^3) per head. Rows are independent of each other.

    Args:
        x: one vector per slot.
        weights: not negative; 0 leaves a slot out.
        ridge: more than 0.
    """
    # Each row by itself, in memory of its own: how products round depends on where in a batch a row lies.
    rows = zip(torch.split(x, 1), torch.split(weights, 1), strict=True)
    return torch.cat([_of_row((own * w.sqrt()[..., None]).clone(), ridge) for own, w in rows])


def _of_row(x: Float32[Tensor, "1 h N D"], ridge: float) -> Float32[Tensor, "1 h N"]:
    gram = precise(x.mT @ x)
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # Rounding of the products in float32 may cost as much as this; a smaller ridge might leave no Cholesky factor.
    least = 1e-6 * gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    factor = torch.linalg.cholesky(gram + torch.clamp(least, min=ridge) * unit)
    white = torch.linalg.solve_triangular(factor, unit.expand_as(factor), upper=False).to(x)
    return (x @ white.mT).square().sum(-1)
