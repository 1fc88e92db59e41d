"""Sums and weighted means over clusters, added in the same order in every run."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops import cluster_loops, compiled


def counts(assignment: Int64[Tensor, " N"], clusters: int) -> Int64[Tensor, " K"]:
    """Number of tokens in each of ``clusters`` clusters."""
    return torch.bincount(assignment, minlength=clusters)


def cluster_sums(values: Float[Tensor, "N E"], assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
    """Sum of the values in each cluster, added in the same order in every run; 0 for a cluster without tokens.

    Compiled loops add in token order. Where they cannot run (:func:`kvfw.core.ops.compiled.serves`), ``index_add_``
    would add atomically, in no fixed order, so tokens are sorted by cluster and each cluster is reduced as a segment.

    Raises:
        ValueError: a cluster id out of range, or not one id per token.
    """
    _check(len(values), assignment, clusters)
    if not compiled.serves(values):
        return _segment_sums(values, assignment, clusters)
    sums = values.new_zeros(clusters, values.shape[1])
    cluster_loops.add_by_cluster(values.contiguous().numpy(), assignment.contiguous().numpy(), sums.numpy())
    return sums


def weighted_means(
    values: Float[Tensor, "N E"], weights: Float[Tensor, " N"], assignment: Int64[Tensor, " N"], clusters: int
) -> Float[Tensor, "K E"]:
    """Weighted mean of the values in each cluster: sum a v / sum a.

    A cluster of one token returns that token's values bit for bit, whatever its weight; one whose weights are all zero
    returns the plain mean; one without tokens is NaN. Weights are scaled within each cluster by a power of two, which
    changes no ratio and no rounding, so that very small weights do not underflow.

    Raises:
        ValueError: a cluster id out of range, or not one id and one weight per token.
    """
    _check(len(values), assignment, clusters)
    if len(weights) != len(values):
        raise ValueError(f"{len(weights)} weights for {len(values)} tokens: every token needs one")
    # The limit only bites for subnormal weights.
    limit = 0.25 / torch.finfo(weights.dtype).tiny
    if not compiled.serves(values, weights):
        return _weighted_means(values, weights, assignment, clusters, limit)
    means = values.new_zeros(clusters, values.shape[1])
    cluster_loops.means_by_cluster(
        values.contiguous().numpy(), weights.contiguous().numpy(), assignment.contiguous().numpy(), means.numpy(), limit
    )
    return means


def _check(tokens: int, assignment: Int64[Tensor, " ids"], clusters: int) -> None:
    """Checks ids before the loops use them: they do not check bounds, so a wrong id would corrupt memory."""
    if len(assignment) != tokens:
        raise ValueError(f"{len(assignment)} cluster ids for {tokens} tokens: every token needs one")
    if not len(assignment):
        return
    low, high = (int(end) for end in assignment.aminmax())
    if low < 0 or high >= clusters:
        raise ValueError(f"cluster {low if low < 0 else high} is not one of {clusters}: they are numbered from 0")


def _weighted_means(
    values: Float[Tensor, "N E"],
    weights: Float[Tensor, " N"],
    assignment: Int64[Tensor, " N"],
    clusters: int,
    limit: float,
) -> Float[Tensor, "K E"]:
    top = weights.new_zeros(clusters).scatter_reduce(0, assignment, weights, "amax")
    # top = mantissa * 2^e, hence the quotient is exactly 2^-e.
    scale = torch.where(top > 0, torch.frexp(top).mantissa / top, 0).clamp(max=limit)
    a = torch.where(top[assignment] > 0, weights * scale[assignment], 1)[:, None]
    means = cluster_sums(a * values, assignment, clusters) / cluster_sums(a, assignment, clusters)
    alone = (counts(assignment, clusters) == 1).nonzero().squeeze(1)
    tokens = torch.arange(len(assignment), device=assignment.device)
    # In a cluster of several tokens an arbitrary one is written, but only single-token clusters are read.
    some = assignment.new_zeros(clusters).scatter_(0, assignment, tokens)
    return means.index_copy_(0, alone, values.index_select(0, some[alone]))


def _segment_sums(values: Float[Tensor, "N E"], assignment: Int64[Tensor, " N"], clusters: int) -> Float[Tensor, "K E"]:
    order = assignment.argsort(stable=True)
    sums: Tensor = torch.segment_reduce(values[order], "sum", lengths=counts(assignment, clusters))
    return sums
