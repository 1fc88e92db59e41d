"""Sums and weighted means of the clusters of a partition, in an order that is the same in every run."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

#: Weights no less than this times their largest need no scaling against underflow.
EVEN = 2.0**-20


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


class ClusterMeans:
    """Weighted means of the clusters of one partition, of as many values of the tokens as are asked for.

    A mean is sum a v / sum a. A cluster of one token returns that token's values bit for bit, whatever its weight. A
    cluster whose weights are all zero returns the plain mean. A cluster without tokens has no mean: its row is NaN.

    Weights are scaled within each cluster by a power of two, which changes no ratio and no rounding, so that
    clusters of very small weights do not underflow.
    """

    def __init__(self, weights: Float[Tensor, " N"], assignment: Int64[Tensor, " N"], clusters: int) -> None:
        self._assignment = assignment
        self._clusters = clusters
        top = weights.new_zeros(clusters).scatter_reduce(0, assignment, weights, "amax")
        mantissa = torch.frexp(top).mantissa
        # top = mantissa * 2^e, hence the quotient is exactly 2^-e; the limit only bites for subnormal weights.
        limit = 0.25 / torch.finfo(weights.dtype).tiny
        scale = torch.where(top > 0, mantissa / top, 0).clamp(max=limit)
        self._a = torch.where(top[assignment] > 0, weights * scale[assignment], 1)[:, None]
        self._total = cluster_sums(self._a, assignment, clusters)
        self._alone = _alone(assignment, clusters)

    def of(self, values: Float[Tensor, "N E"]) -> Float[Tensor, "K E"]:
        """Means of these values."""
        means = cluster_sums(self._a * values, self._assignment, self._clusters) / self._total
        clusters, tokens = self._alone
        return means.index_copy_(0, clusters, values.index_select(0, tokens))


def weighted_means(
    values: Float[Tensor, "N E"], weights: Float[Tensor, " N"], assignment: Int64[Tensor, " N"], clusters: int
) -> Float[Tensor, "K E"]:
    """Weighted mean of the values in each cluster, as :class:`ClusterMeans` has it."""
    return ClusterMeans(weights, assignment, clusters).of(values)


class RepeatedMeans:
    """Weighted means of the same values in one partition after another, as :func:`weighted_means` has them, faster.

    The products a v are taken once. For that no weight may be below :data:`EVEN` times the largest, so that there is
    nothing to be gained by scaling; the results are the same, but for values of less than 1e-30.
    """

    def __init__(self, values: Float[Tensor, "N E"], weights: Float[Tensor, " N"]) -> None:
        self._values = values
        self._weights = weights[:, None]
        self._products = self._weights * values

    def of(self, assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
        """Means of the clusters of this partition."""
        total = cluster_sums(self._weights, assignment, clusters)
        means = cluster_sums(self._products, assignment, clusters) / total
        alone, tokens = _alone(assignment, clusters)
        return means.index_copy_(0, alone, self._values.index_select(0, tokens))


def _alone(assignment: Int64[Tensor, " N"], clusters: int) -> tuple[Int64[Tensor, " k"], Int64[Tensor, " k"]]:
    """The clusters of one token, and that token of each."""
    alone = (counts(assignment, clusters) == 1).nonzero().squeeze(1)
    tokens = torch.arange(len(assignment), device=assignment.device)
    # Of a cluster of several any one is written; it is not looked at.
    some = assignment.new_zeros(clusters).scatter_(0, assignment, tokens)
    return alone, some[alone]


def _segment_sums(values: Float[Tensor, "N E"], assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
    order = assignment.argsort(stable=True)
    sums: Tensor = torch.segment_reduce(values[order], "sum", lengths=counts(assignment, clusters))
    return sums
