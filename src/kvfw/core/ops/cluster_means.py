"""Sums and weighted means of the clusters of a partition, in an order that is the same in every run."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def counts(assignment: Int64[Tensor, " N"], clusters: int) -> Int64[Tensor, " K"]:
    """Number of tokens in each of ``clusters`` clusters; 0 for a cluster without tokens."""
    return torch.bincount(assignment, minlength=clusters)


def cluster_sums(values: Float[Tensor, "N E"], assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
    """Sum of the values in each cluster, added in an order that is the same in every run; 0 without tokens.

    On the CPU ``index_add_`` adds in token order. On other devices it adds atomically, in no order, so there
    the tokens are first sorted by cluster and each cluster is reduced as a segment.
    """
    if values.device.type == "cpu":
        return values.new_zeros(clusters, values.shape[1]).index_add_(0, assignment, values)
    return _segment_sums(values, assignment, clusters)


def weighted_means(
    values: Float[Tensor, "N E"], weights: Float[Tensor, " N"], assignment: Int64[Tensor, " N"], clusters: int
) -> Float[Tensor, "K E"]:
    """Weighted mean of the values in each cluster: sum a v / sum a.

    A cluster of one token returns that token's values bit for bit, whatever its weight. A cluster whose
    weights are all zero returns the plain mean. A cluster without tokens has no mean: its row is NaN.

    Weights are scaled within each cluster by a power of two, which changes no ratio and no rounding, so that
    clusters of very small weights do not underflow.
    """
    top = weights.new_zeros(clusters).scatter_reduce(0, assignment, weights, "amax")
    mantissa = torch.frexp(top).mantissa
    # top = mantissa * 2^e, hence the quotient is exactly 2^-e; the limit only bites for subnormal weights.
    limit = 0.25 / torch.finfo(weights.dtype).tiny
    scale = torch.where(top > 0, mantissa / top, 0).clamp(max=limit)
    a = torch.where(top[assignment] > 0, weights * scale[assignment], 1)[:, None]
    total = cluster_sums(a, assignment, clusters)
    means = cluster_sums(a * values, assignment, clusters) / total
    alone = (counts(assignment, clusters)[assignment] == 1).nonzero().squeeze(1)
    means[assignment[alone]] = values[alone]
    return means


def _segment_sums(values: Float[Tensor, "N E"], assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
    order = assignment.argsort(stable=True)
    sums: Tensor = torch.segment_reduce(values[order], "sum", lengths=counts(assignment, clusters))
    return sums
