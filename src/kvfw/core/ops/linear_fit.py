"""Ridge least squares over more data than fits in memory, for every head by itself."""

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from kvfw.core.ops.least_squares import precise

#: Sums of the products of all pairs of (features, 1, target), per head.
Gram = Float64[Tensor, "H t t"]


def gram_of(features: Float32[Tensor, "H N F"], target: Float32[Tensor, "H N"], counted: Bool[Tensor, "H N"]) -> Gram:
    """The sums over the counted rows; those of two blocks of rows add up to those of both."""
    whole = torch.cat((features, torch.ones_like(target)[..., None], target[..., None]), -1)
    whole = precise(whole.masked_fill(~counted[..., None], 0.0))
    return whole.mT @ whole


def fit(gram: Gram, ridge: float) -> Float64[Tensor, "H f"]:
    """Weights of the features and, last, the constant, that predict the target.

    Features are brought to mean 0 and variance 1, and ``ridge`` is added to the diagonal of their correlations.
    """
    count, sums = gram[:, -2, -2, None], gram[:, -2]
    mean = sums / count.clamp(min=1)
    spread = gram / count[..., None].clamp(min=1) - mean[..., None] * mean[:, None]
    inside, along = spread[:, :-2, :-2], spread[:, :-2, -1]
    scale = inside.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()
    related = inside / scale[..., None] / scale[:, None]
    related = related + max(ridge, 1e-9) * torch.eye(related.shape[-1], dtype=related.dtype, device=related.device)
    weights = torch.linalg.solve(related, along / scale) / scale
    return torch.cat((weights, mean[:, -1:] - (weights * mean[:, :-2]).sum(1, keepdim=True)), 1)


def r_squared(gram: Gram, weights: Float64[Tensor, "H f"]) -> Float[Tensor, " H"]:
    """Part of the target's variance in ``gram``'s rows that the weights explain; below 0 if the mean does better."""
    residual = torch.cat((weights, -torch.ones_like(weights[:, :1])), 1)
    wrong = (residual[:, None] @ gram @ residual[..., None]).flatten()
    return 1 - wrong / (gram[:, -1, -1] - gram[:, -2, -1] ** 2 / gram[:, -2, -2].clamp(min=1)).clamp(min=1e-12)
