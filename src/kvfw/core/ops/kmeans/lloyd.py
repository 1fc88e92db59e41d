"""Weighted k-means over the tokens of one head, exact and deterministic: the arithmetic behind E-Means.

Heads are clustered separately even when one call handles several: none changes a bit of another.

Notation: tokens x_i in R^D with weights a_i >= 0 (i < N), centres c_k (k < K), assignment z_i in 0..K-1.

    start    c_k = x_r with r = floor(k (N-1) / (K-1)), and r = floor((N-1) / 2) when K = 1
    assign   z_i = argmin_k |x_i - c_k|^2, ties to the lowest k
    repair   each empty cluster, lowest k first, takes the token of largest a_i |x_i - c_{z_i}|^2, ties to the
             lowest i, from a cluster of at least two; that token is then alone and stays where it is
    means    c_k = sum_{z_i=k} a_i x_i / sum_{z_i=k} a_i

:mod:`kvfw.core.ops.kmeans.nearest` explains how the nearest centre is found so that ties are real ties.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.cluster_means import counts, weighted_means
from kvfw.core.ops.kmeans.blocks import Blocks, divided
from kvfw.core.ops.kmeans.nearest import CHUNK, Search
from kvfw.core.ops.kmeans.picking import to_own


def clusters_of_heads(
    x: Float[Tensor, "G N D"],
    weights: Float[Tensor, "G N"],
    clusters: int,
    iters: int,
    block: int | None = None,
    *,
    chunk: int = CHUNK,
) -> Int64[Tensor, "G N"]:
    """Weighted Lloyd iterations from evenly spaced tokens, as defined at the top of this module, for G heads.

    One iteration: assign, repair, stop if the assignment equals the previous iteration's, else move the centres to the
    means. There are at most ``iters`` assignments; ``iters=1`` assigns once, to the starting tokens.

    With ``block`` the tokens are cut into contiguous blocks (the last may be shorter) that are clustered separately:
    linear in N when K grows with N. If a full block's share K * block / N is below one, ``block`` is first raised to
    its least multiple whose share is not; if the short last block's share still rounds to 0, it joins the block before
    it. The K clusters are divided over the blocks in proportion to their tokens by largest remainder, in integers, ties
    to the earlier block; ids ascend with the blocks. ``block >= N`` is the same as none.

    Args:
        x: tokens of every head, float32 or float64; all arithmetic stays in this dtype.
        weights: a_i >= 0, same dtype. A head's common factor cancels (exactly so, if it is a power of two).
        clusters: K >= 1. With K >= N every token is its own cluster: the identity assignment.
        iters: most assignments per block, >= 1.
        block: tokens per block, >= 1; None: all in one.
        chunk: most elements of the token-by-centre block held at once (but at least 16 tokens' rows of K). It bounds
            memory and never affects the result.

    Returns:
        Cluster of every token, 0 ... min(K, N) - 1; none is empty.

    Raises:
        ValueError: ``x`` without tokens; ``clusters``, ``iters``, ``block`` or ``chunk`` below 1; a dtype that is not
            float32 or float64; coordinates that are not finite or whose squared distances could overflow; weights that
            are negative or not finite.
    """
    heads, N, _ = x.shape
    if block is not None and block < 1:
        raise ValueError(f"block={block}: a block must have at least 1 token")
    x, weights = _plain(x), _plain(weights)
    if heads == 0:
        return torch.empty(0, N, dtype=torch.int64, device=x.device)
    a = torch.stack([_checked_weights(x[g], weights[g], clusters, iters, chunk) for g in range(heads)])
    if clusters >= N:
        return torch.arange(N, device=x.device).repeat(heads, 1)
    parts = [(N, clusters)] if block is None else divided(N, clusters, block)
    ids = _lloyd(x.flatten(0, 1), a.flatten(), parts * heads, iters, chunk).view(heads, N)
    return ids - torch.arange(heads, device=x.device)[:, None] * clusters


def _lloyd(
    x: Float[Tensor, "N D"], a: Float[Tensor, " N"], parts: list[tuple[int, int]], iters: int, chunk: int
) -> Int64[Tensor, " N"]:
    """Lloyd iterations of all blocks together; ``parts`` as in :class:`Blocks`."""
    blocks = Blocks(parts, x.device)
    search = Search(x, blocks, chunk)
    centres = x[blocks.starting_tokens()]
    assignment = _without_empty(search.nearest(centres), x, a, centres, blocks)
    return _until_stable(search, a, assignment, iters - 1)


def _until_stable(
    search: Search, a: Float[Tensor, " N"], assignment: Int64[Tensor, " N"], iters: int
) -> Int64[Tensor, " N"]:
    """At most ``iters`` more iterations; once half of the blocks are stable, only the others continue."""
    x, blocks = search.x, search.blocks
    for done in range(iters):
        centres = weighted_means(x, a, assignment, len(blocks.of_cluster))
        previous, assignment = assignment, _without_empty(search.nearest(centres), x, a, centres, blocks)
        moved = blocks.of_token.new_zeros(len(blocks.parts), dtype=torch.bool)
        moved[blocks.of_token[assignment != previous]] = True
        moving = moved.nonzero().squeeze(1)
        if not len(moving):
            break
        if 2 * len(moving) <= len(blocks.parts):
            tokens = moved[blocks.of_token].nonzero().squeeze(1)
            rest = Search(x.index_select(0, tokens), blocks.only(moving), search.chunk)
            shift = (rest.blocks.first - blocks.first[moving])[rest.blocks.of_token]
            assignment[tokens] = _until_stable(rest, a[tokens], assignment[tokens] + shift, iters - 1 - done) - shift
            break
    return assignment


def _plain(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Detached and row-major: the order in which a row is summed depends on its memory layout."""
    return values.detach().contiguous()


def _without_empty(
    nearest: Int64[Tensor, " N"],
    x: Float[Tensor, "N D"],
    a: Float[Tensor, " N"],
    centres: Float[Tensor, "K D"],
    blocks: Blocks,
) -> Int64[Tensor, " N"]:
    """The assignment after every empty cluster took a token of its block, in order of falling a_i |x_i - c|^2.

    Taken in order of falling cost, a cluster can give away all but the last of its tokens, however the clusters'
    tokens are interleaved, so all donors are known at once.
    """
    B, K = len(blocks.parts), len(blocks.of_cluster)
    empty = (counts(nearest, K) == 0).nonzero().squeeze(1)
    if not len(empty):
        return nearest
    cost = a * to_own(x, centres, nearest)
    # By falling cost within a block; padding comes last.
    by_cost = blocks.table(cost, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = (by_cost + blocks.start[:, None]).flatten().index_select(0, blocks.place)
    home = nearest[order]
    place = torch.arange(len(order), device=order.device)
    last = place.new_zeros(K).scatter_reduce(0, home, place, "amax")
    donors = order[place != last[home]]
    # Both lists ascend by block: the j-th empty cluster of a block takes the j-th donor of that block.
    owner = blocks.of_cluster[empty]
    gap = _starts(blocks.of_token[donors], B) - _starts(owner, B)
    assignment = nearest.clone()
    assignment[donors[gap[owner] + place[: len(empty)]]] = empty
    # A block with as many clusters as tokens keeps its tokens in order, equal ones too.
    block = blocks.of_token
    alone = blocks.shares[block] == blocks.tokens[block]
    return torch.where(alone, blocks.first[block] + place - blocks.start[block], assignment)


def _starts(group: Int64[Tensor, " n"], groups: int) -> Int64[Tensor, " groups"]:
    """Where each group begins in an ascending list of group numbers."""
    sizes = torch.bincount(group, minlength=groups)
    return sizes.cumsum(0) - sizes


def _checked_weights(
    x: Float[Tensor, "N D"], weights: Float[Tensor, " N"], clusters: int, iters: int, chunk: int
) -> Float[Tensor, " N"]:
    """Validates a call and scales the weights by a power of two so that the largest is in [1/2, 1)."""
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: k-means needs at least 1 token of at least 1 coordinate")
    for name, number in (("clusters", clusters), ("iters", iters), ("chunk", chunk)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if x.dtype not in (torch.float32, torch.float64) or weights.dtype != x.dtype:
        raise ValueError(f"x is {x.dtype} and weights are {weights.dtype}: convert both to float32 or both to float64")
    info = torch.finfo(x.dtype)
    # Largest |coordinate| for which (|y| + |z|)^2 cannot overflow. The comparison also fails for NaN.
    limit = (info.max / x.shape[1]) ** 0.5 / 8
    largest = max(abs(float(end)) for end in x.aminmax())
    if not largest <= limit:
        raise ValueError(f"x has a coordinate of size {largest:g}: must be finite and at most {limit:g}")
    low, high = (float(w) for w in weights.aminmax())
    if not (low >= 0 and high <= info.max):
        raise ValueError(f"weights span {low:g} to {high:g}: must be finite and not negative")
    if high == 0:
        return weights
    top = weights.amax()
    # top = mantissa * 2^e, hence the quotient is exactly 2^-e; the limit only bites for subnormal weights.
    return weights * (torch.frexp(top).mantissa / top).clamp(max=0.25 / info.tiny)
