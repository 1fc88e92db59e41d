"""Weighted k-means over the tokens of one head, exact and deterministic: the arithmetic behind E-Means.

Heads are clustered apart, also where one call handles several: none can influence another, not by a bit.

Notation: tokens x_i in R^D with weights a_i >= 0 (i < N), centres c_k (k < K), assignment z_i in 0..K-1.

    start    c_k = x_r with r = floor(k (N-1) / (K-1)), and r = floor((N-1) / 2) when K = 1
    assign   z_i = argmin_k |x_i - c_k|^2, ties to the lowest k
    repair   each empty cluster, lowest k first, takes the token of largest a_i |x_i - c_{z_i}|^2, ties to the
             lowest i, from a cluster of at least two; that token is then alone and stays where it is
    means    c_k = sum_{z_i=k} a_i x_i / sum_{z_i=k} a_i

"|x_i - c_k|^2" always means the sum of squared differences, computed from one token and one centre alone. The
matrix product |c|^2 - 2 x.c only narrows the choice to centres that rounding could make nearest, which are
then compared by that sum. So equal tokens are equally far, ties are real ties, and neither the chunk size nor
the number of threads shows in the result. (The margin assumes torch's default, full-precision float32
products: with TF32 switched on, a token can go to a centre that is nearest only within TF32's rounding.)
"""

from collections.abc import Iterator
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from kvfw.core.ops.cluster_means import counts, weighted_means

CHUNK = 2**19
"""Default size, in elements, of the largest token-by-centre block held at once: 2 MiB of float32. Measured at
2984 tokens and 746 clusters, blocks a quarter of this size are a quarter slower, larger ones no faster."""


def clusters_of_heads(
    x: Float[Tensor, "G N D"],
    weights: Float[Tensor, "G N"],
    clusters: int,
    iters: int,
    block: int | None = None,
    *,
    chunk: int = CHUNK,
) -> Int64[Tensor, "G N"]:
    """Weighted Lloyd iterations from evenly spaced tokens, as laid down at the top of this module, for G heads.

    One iteration is: assign, repair, stop if the repaired assignment equals the previous iteration's, else move the
    centres to the means. At most ``iters`` iterations run, so there are at most ``iters`` assignments, and ``iters=1``
    assigns once to the starting tokens.

    With ``block`` the tokens are cut into contiguous blocks, the last one possibly shorter, which are clustered apart:
    linear in N when K grows with N. Where that would leave a block without a cluster, neighbours are merged: if a full
    block's share K * block / N is below one, ``block`` is first raised to its least multiple whose share is not; then,
    if the short last block's share is still rounded to 0, it joins the block before it. The K clusters are divided over
    the blocks in proportion to their tokens by largest remainder, in integers, ties to the earlier block; ids ascend
    with the blocks. ``block >= N`` is the same as none.

    Small heads are clustered side by side, since they are made of many small operations; large ones one after the
    other, since only then the search leaves out centres that stayed where they were. Neither shows in the result.

    Args:
        x: tokens of every head, float32 or float64; all arithmetic stays in this dtype.
        weights: a_i >= 0, same dtype. A head's common factor cancels (exactly so, if it is a power of two).
        clusters: K >= 1. With K >= N every token is its own cluster: the identity assignment.
        iters: greatest number of assignments, in every block, >= 1.
        block: tokens per block, >= 1; None: all in one.
        chunk: greatest number of elements of the token-by-centre block held at once (but at least one token's row of
            K). It bounds memory and never shows in the result.

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
    a = torch.stack([_checked_weights(x[g], weights[g], clusters, iters, chunk) for g in range(heads)])
    if clusters >= N:
        return torch.arange(N, device=x.device).expand(heads, N)
    blocks = [(N, clusters)] if block is None else _blocks(N, clusters, block)
    together = heads if block is not None or N * clusters <= chunk else 1
    assignment = torch.empty(heads, N, dtype=torch.int64, device=x.device)
    for g in range(0, heads, together):
        some = slice(g, g + together)
        for start, first, tokens, shares in _runs(blocks):
            part = slice(start, start + tokens * len(shares))
            here = x[some, part]
            found = _lloyd(here.flatten(0, 1), a[some, part].flatten(), shares * here.shape[0], iters, chunk)
            ids = found.view(here.shape[0], -1) - torch.arange(here.shape[0], device=x.device)[:, None] * sum(shares)
            assignment[some, part] = ids + first
    return assignment


def _runs(blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int, int, list[int]]]:
    """Neighbouring blocks of equally many tokens: first token, first cluster, tokens of each, clusters of each."""
    start = first = 0
    for tokens, run in groupby(blocks, key=lambda part: part[0]):
        shares = [share for _, share in run]
        yield start, first, tokens, shares
        start, first = start + tokens * len(shares), first + sum(shares)


def _lloyd(
    x: Float[Tensor, "N D"], a: Float[Tensor, " N"], shares: list[int], iters: int, chunk: int
) -> Int64[Tensor, " N"]:
    """Lloyd iterations side by side in ``len(shares)`` blocks of equally many tokens, clustered separately.

    A block that is stable repeats itself exactly, so iterating on until all are stable changes nothing in it.
    """
    blocks = _Blocks(len(x) // len(shares), shares, x.device)
    K = sum(shares)
    search = _Search(x, blocks, chunk)
    centres = x[blocks.starting_tokens()]
    nearest = search.all(centres)
    assignment = _without_empty(nearest, x, a, centres, blocks)
    for _ in range(iters - 1):
        moved = weighted_means(x, a, assignment, K)
        nearest = search.again(nearest, centres, moved) if len(shares) == 1 else search.all(moved)
        centres, previous = moved, assignment
        assignment = _without_empty(nearest, x, a, centres, blocks)
        if torch.equal(assignment, previous):
            break
    return assignment


class _Blocks:
    """B blocks of T tokens each; block b owns ``shares[b]`` of the K cluster ids, ascending with b."""

    def __init__(self, T: int, shares: list[int], device: torch.device) -> None:
        self.T = T
        self.shares = shares
        sizes = torch.tensor(shares, device=device)
        self.first = sizes.cumsum(0) - sizes
        self.of_cluster = torch.arange(len(shares), device=device).repeat_interleave(sizes)
        self.within = torch.arange(sum(shares), device=device) - self.first[self.of_cluster]
        self.sizes = sizes

    def starting_tokens(self) -> Int64[Tensor, " K"]:
        """The token each centre starts from: evenly spaced ranks within the block."""
        k = self.sizes[self.of_cluster]
        rank = self.within * (self.T - 1) // (k - 1).clamp(min=1)
        return self.of_cluster * self.T + torch.where(k == 1, (self.T - 1) // 2, rank)


class _Search:
    """Nearest centres of a fixed set of tokens, each among the centres of its own block."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: _Blocks, chunk: int) -> None:
        self.x = x
        self.blocks = blocks
        self.chunk = chunk
        # Products are taken around the mean token: keys often share a large offset, and it would cost digits.
        y = x.view(len(blocks.shares), blocks.T, -1)
        self.origin = y.mean(1)
        self.y = y - self.origin[:, None]
        self.length = torch.linalg.vector_norm(self.y, dim=2)

    def all(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b = self.blocks
        z = centres - self.origin[b.of_cluster]
        # Rows of a multiple of 8 centres, so that 8 comparisons can be read as one word; the extra never win.
        width = -(-max(b.shares) // 8) * 8
        table = z.new_zeros(len(b.shares), width, z.shape[1])
        table[b.of_cluster, b.within] = z
        offset = z.new_full((len(b.shares), width), torch.inf)
        offset[b.of_cluster, b.within] = (z * z).sum(1)
        return self._nearest(self.x, self.y, centres, b.first, table, offset, self._margin(self.length, z))

    def _some(self, tokens: Int64[Tensor, " n"], centres: Float[Tensor, "k D"]) -> Int64[Tensor, " n"]:
        """The same for some tokens among some centres; one block only."""
        z = centres - self.origin
        extra = -len(z) % 8
        table = pad(z, (0, 0, 0, extra))[None]
        offset = pad((z * z).sum(1), (0, extra), value=torch.inf)[None]
        margin = self._margin(self.length[:, tokens], z)
        first = tokens.new_zeros(1)
        x, y = self.x.index_select(0, tokens), self.y.index_select(1, tokens)
        return self._nearest(x, y, centres, first, table, offset, margin)

    def again(
        self, nearest: Int64[Tensor, " N"], before: Float[Tensor, "K D"], after: Float[Tensor, "K D"]
    ) -> Int64[Tensor, " N"]:
        """:meth:`all` after centres moved, given the answer before the move; one block only.

        A token whose own centre came no farther needs comparing with the centres that moved only: the others lost
        against that centre before, by distance or by index, and lose again.
        """
        changed = (after != before).any(1)
        touched = changed[nearest].nonzero().squeeze(1)
        farther = self._distance(touched, nearest, after) > self._distance(touched, nearest, before)
        lost = touched[farther]
        held = torch.ones_like(nearest, dtype=torch.bool).index_fill_(0, lost, False)
        rest, ids = held.nonzero().squeeze(1), changed.nonzero().squeeze(1)

        found = nearest.clone()
        if len(lost):
            found[lost] = self._some(lost, after)
        if len(ids) and len(rest):
            rival, old = nearest.clone(), nearest[rest]
            rival[rest] = ids[self._some(rest, after[ids])]
            far, best = self._distance(rest, rival, after), self._distance(rest, nearest, after)
            wins = (far < best) | ((far == best) & (rival[rest] < old))
            found[rest] = torch.where(wins, rival[rest], old)
        return found

    def _distance(
        self, tokens: Int64[Tensor, " n"], assignment: Int64[Tensor, " N"], centres: Float[Tensor, "K D"]
    ) -> Float[Tensor, " n"]:
        """Squared distance of some tokens to the centres they are assigned to."""
        return _squared_distance(self.x.index_select(0, tokens), centres.index_select(0, assignment[tokens]))

    @staticmethod
    def _margin(length: Float[Tensor, "B n"], z: Float[Tensor, "k D"]) -> Float[Tensor, "B n"]:
        """How far above the least score |z|^2 - 2 y.z a centre can lie and still be the nearest.

        Score and direct sum are each within (D + 4) unit roundoffs of the truth, relative to (|y| + |z|)^2,
        and two centres are compared; eps is two unit roundoffs, the rest is slack. ``tiny`` is for squares
        that underflow.
        """
        reach: Tensor = length + torch.linalg.vector_norm(z, dim=1).amax()
        info = torch.finfo(z.dtype)
        return 2 * (z.shape[1] + 8) * (info.eps * reach.square() + info.tiny)

    def _nearest(
        self,
        x: Float[Tensor, "Bn D"],
        y: Float[Tensor, "B n D"],
        centres: Float[Tensor, "K D"],
        first: Int64[Tensor, " B"],
        table: Float[Tensor, "B width D"],
        offset: Float[Tensor, "B width"],
        margin: Float[Tensor, "B n"],
    ) -> Int64[Tensor, " Bn"]:
        """Nearest centre of n tokens in each of B blocks.

        ``x`` and ``y`` are the tokens as given and around their block's mean. Block b's centres are those
        from ``first[b]`` on; ``table`` and ``offset`` hold them as z and |z|^2, filled up with an offset of
        infinity.
        """
        B, n, _ = y.shape
        width = table.shape[1]
        index = first.new_empty(B * n)
        rows = min(n, max(1, self.chunk // width))
        together = min(B, max(1, self.chunk // (n * width)))
        score = x.new_empty(together * rows * width)
        near = torch.empty_like(score, dtype=torch.bool)
        for b in range(0, B, together):
            for start in range(0, n, rows):
                here = y[b : b + together, start : start + rows]
                s = score[: here.shape[0] * here.shape[1] * width].view(*here.shape[:2], width)
                m = near[: s.numel()].view(s.shape)
                torch.baddbmm(offset[b : b + together, None], here, table[b : b + together].mT, alpha=-2, out=s)
                bound = s.amin(2) + margin[b : b + together, start : start + rows]
                torch.le(s, bound[..., None], out=m)
                row, column = _true_cells(m.view(-1, width))
                if B > 1:
                    column += first[b + row // here.shape[1]]
                # Blocks are taken together only if all their rows fit, so these rows are neighbours.
                part = slice(b * n + start, b * n + start + here.shape[0] * here.shape[1])
                index[part] = self._closest(x[part], centres, row, column)
        return index

    def _closest(
        self,
        x: Float[Tensor, "n D"],
        centres: Float[Tensor, "K D"],
        row: Int64[Tensor, " p"],
        column: Int64[Tensor, " p"],
    ) -> Int64[Tensor, " n"]:
        """Decides where a row of ``x`` has several candidate rows of ``centres``, by the direct sum."""
        if len(row) == len(x):
            return column
        found = column.new_full(x.shape[:1], len(centres))
        several = (torch.bincount(row, minlength=len(x)) > 1)[row]
        found[row[~several]] = column[~several]
        row, column = row[several], column[several]
        pairs = max(1, self.chunk // x.shape[1])
        far = x.new_empty(len(row))
        for start in range(0, len(row), pairs):
            some = slice(start, start + pairs)
            far[some] = _squared_distance(x.index_select(0, row[some]), centres.index_select(0, column[some]))
        least = far.new_full(x.shape[:1], torch.inf).scatter_reduce(0, row, far, "amin")
        wins = far == least[row]
        return found.scatter_reduce(0, row[wins], column[wins], "amin")


def _plain(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Without gradients, and row-major: the order in which a row is summed would follow its memory layout."""
    return values.detach().contiguous()


def _squared_distance(x: Float[Tensor, "p D"], c: Float[Tensor, "p D"]) -> Float[Tensor, " p"]:
    return (x - c).square_().sum(1)


def _true_cells(mask: Bool[Tensor, "n k"]) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
    """Rows and columns of the true cells, in row-major order. The row length must be a multiple of 8.

    Few cells are true, and finding non-zero 8-byte words first takes a fraction of the time of finding bytes.
    """
    row, word = mask.view(torch.int64).nonzero(as_tuple=True)
    which, byte = mask.view(len(mask), -1, 8)[row, word].nonzero(as_tuple=True)
    return row[which], word[which] * 8 + byte


def _without_empty(
    nearest: Int64[Tensor, " N"],
    x: Float[Tensor, "N D"],
    a: Float[Tensor, " N"],
    centres: Float[Tensor, "K D"],
    blocks: _Blocks,
) -> Int64[Tensor, " N"]:
    """The assignment after every empty cluster took a token of its block, in order of falling a_i |x_i - c|^2.

    Taking tokens one by one in order of falling cost, a cluster can give away all but the last of its tokens
    in that order, however the others are interleaved. So the donors are known at once.
    """
    B, T, K = len(blocks.shares), blocks.T, len(blocks.of_cluster)
    empty = (counts(nearest, K) == 0).nonzero().squeeze(1)
    if not len(empty):
        return nearest
    cost = a * _squared_distance(x, centres.index_select(0, nearest))
    order = cost.view(B, T).argsort(dim=1, descending=True, stable=True)
    order = (order + torch.arange(B, device=order.device)[:, None] * T).view(-1)
    home = nearest[order]
    place = torch.arange(len(order), device=order.device)
    last = place.new_zeros(K).scatter_reduce(0, home, place, "amax")
    donors = order[place != last[home]]
    # Both lists ascend by block: the j-th empty cluster of a block takes the j-th donor of that block.
    owner = blocks.of_cluster[empty]
    gap = _starts(donors // T, B) - _starts(owner, B)
    assignment = nearest.clone()
    assignment[donors[gap[owner] + place[: len(empty)]]] = empty
    # A block with as many clusters as tokens keeps its tokens in order, equal ones too.
    block = place // T
    return torch.where(blocks.sizes[block] == T, blocks.first[block] + place % T, assignment)


def _starts(group: Int64[Tensor, " n"], groups: int) -> Int64[Tensor, " groups"]:
    """Where each group begins in an ascending list of group numbers."""
    sizes = torch.bincount(group, minlength=groups)
    return sizes.cumsum(0) - sizes


def _blocks(N: int, K: int, block: int) -> list[tuple[int, int]]:
    """Tokens and clusters of each block, in order, for 1 <= K < N. See :func:`clusters_of_heads`."""
    size = block * -(-N // (K * block))
    tokens = [size] * (N // size) + ([N % size] if N % size else [])
    shares = _largest_remainder(K, tokens)
    if shares[-1] == 0:
        short = tokens.pop()
        tokens[-1] += short
        shares = _largest_remainder(K, tokens)
    return list(zip(tokens, shares, strict=True))


def _largest_remainder(K: int, tokens: list[int]) -> list[int]:
    N = sum(tokens)
    shares = [K * n // N for n in tokens]
    by_remainder = sorted(range(len(tokens)), key=lambda b: -(K * tokens[b] % N))
    for b in by_remainder[: K - sum(shares)]:
        shares[b] += 1
    return shares


def _checked_weights(
    x: Float[Tensor, "N D"], weights: Float[Tensor, " N"], clusters: int, iters: int, chunk: int
) -> Float[Tensor, " N"]:
    """Validates a call; returns the weights scaled by a power of two so that the largest is in [1/2, 1)."""
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: k-means needs at least 1 token of at least 1 coordinate")
    for name, number in (("clusters", clusters), ("iters", iters), ("chunk", chunk)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if x.dtype not in (torch.float32, torch.float64) or weights.dtype != x.dtype:
        raise ValueError(f"x is {x.dtype} and weights are {weights.dtype}: convert both to float32 or both to float64")
    info = torch.finfo(x.dtype)
    # Largest |coordinate| for which (|y| + |z|)^2 cannot overflow. Written so that NaN fails, too.
    limit = (info.max / x.shape[1]) ** 0.5 / 8
    largest = float(x.abs().amax())
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
