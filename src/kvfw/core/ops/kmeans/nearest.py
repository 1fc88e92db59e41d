"""Nearest centre of every token, by direct squared distance, among the centres of the token's own block.

"|x - c|^2" means the sum of squared differences, computed from one token and one centre alone. The matrix product
2 x.c - |c|^2 only narrows the choice to centres that rounding could make nearest, which are then compared by that sum.
So equal tokens are equally far, ties are real ties, and neither the chunk size nor the number of threads affects the
result. (The margin assumes torch's default, full-precision float32 products: with TF32 switched on, a token can go to a
centre that is nearest only within TF32's rounding.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops import compiled
from kvfw.core.ops.kmeans import loops
from kvfw.core.ops.kmeans.blocks import LINE, Blocks
from kvfw.core.ops.kmeans.picking import pick, two_largest

CHUNK = 5 * 2**18
"""Default for the most elements of the token-by-centre block held at once: 5 MiB of float32. Measured on heads of 2387
tokens and 149 clusters, half to twice as much is as fast, a tenth of it up to a third slower."""

MANY = 256
"""With at least this many centres per block, scoring only the moved centres is faster once half of them stay."""


@dataclass(frozen=True)
class _Tile:
    """Some tokens of some blocks and the memory for their search; views, made once because making them is slow."""

    columns: Float[Tensor, "b E n"]  # the tokens side by side, and a row of ones
    margin: Float[Tensor, "b n"]
    start: Int64[Tensor, " b"]  # where a block's tokens begin
    table: Float[Tensor, "b k E"]  # 2 z and -|z|^2 of the blocks' centres
    first: Int64[Tensor, " b"]  # where a block's centres begin
    score: Float[Tensor, "b k n"]  # working memory
    known: tuple[Float[Tensor, "b n"], Int64[Tensor, "b n"], Float[Tensor, "b n"]]  # best, at, rest: the results


class Search:
    """Nearest centres of the fixed tokens ``x``, each among those of its block; called again whenever centres move.

    The score of centre z for token y is 2 y.z - |z|^2, both relative to the block's mean token (keys often share a
    large offset, which would cost digits). A one appended to y and -|z|^2 to 2 z make it a single product; adding the
    square separately takes a fifth longer.

    For every token the search remembers its nearest centre's place in the block, that centre's score, and an upper
    bound on the other scores. Scores of unmoved centres cannot have changed, so with many centres of which most stayed,
    only the moved ones are scored. That decides all but a few tokens, whose own centre moved away or has a rival within
    rounding; these are scored against all centres again. ``chunk`` is the most scores held at once, but at least those
    of 16 tokens in one block.

    Source: scoring only moved centres is from T. Kaukoranta, P. Franti, O. Nevalainen, A fast exact GLA based on code
    vector activity detection, IEEE Transactions on Image Processing 9(8), 2000; the bound on all but the nearest, here
    on scores in place of distances, from G. Hamerly, Making k-means even faster, SDM 2010.
    """

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> None:
        self.x = x
        self.blocks = blocks
        self.chunk = chunk
        B, n, D = len(blocks.parts), blocks.width, x.shape[1]
        # Blocks with fewer centres are padded with centres that are never the nearest.
        k = max(share for _, share in blocks.parts)
        self._row = blocks.of_cluster * k + blocks.within
        self._table = x.new_zeros(B, k, D + 1)
        self._table[:, :, D] = -torch.inf
        self._last = x.new_full((len(self._row), D), torch.nan)
        self._longest = x.new_zeros(())
        # Padding of a block's row is NaN: every comparison with it is false.
        self._length = x.new_full((B, n), torch.nan)
        self._margin = torch.empty_like(self._length)
        self._best, self._rest = torch.empty_like(self._length), torch.empty_like(self._length)
        self._at = torch.empty_like(self._length, dtype=torch.int64)
        # Tokens as columns (products take two thirds of the time that way), each with a one below it for the square.
        self._columns = x.new_ones(B, D + 1, n)
        self._origin = x.new_empty(B, D)
        self._lay_tokens()
        self._tiles = tuple(self._tiled(k))

    def _lay_tokens(self) -> None:
        # Transposing whole rows of a separate buffer is fastest. Padding keeps what an earlier block left there.
        D = self.x.shape[1]
        rows = self.x.new_zeros(self.blocks.width, D)
        for b, part in enumerate(torch.split(self.x, [tokens for tokens, _ in self.blocks.parts])):
            own = rows[: len(part)]
            torch.mean(part, 0, out=self._origin[b])
            torch.sub(part, self._origin[b], out=own)
            torch.linalg.vector_norm(own, dim=1, out=self._length[b, : len(part)])
            self._columns[b, :D].copy_(rows.T)

    def _tiled(self, k: int) -> Iterator[_Tile]:
        """Tiles of at most ``chunk`` scores, which share the memory for the scores."""
        B, _, n = self._columns.shape
        some = min(n, max(LINE, self.chunk // k // LINE * LINE))
        passes = -(-B // max(1, self.chunk // (n * k)))
        together = -(-B // passes)
        self._memory = self.x.new_empty(together * k * some)
        for block in range(0, B, together):
            of = slice(block, block + together)
            for token in range(0, n, some):
                part = slice(token, token + some)
                margin = self._margin[of, part]
                yield _Tile(
                    columns=self._columns[of, :, part],
                    margin=margin,
                    start=self.blocks.start[of] + token,
                    table=self._table[of],
                    first=self.blocks.first[of],
                    score=self._memory[: margin.numel() * k].view(len(margin), k, -1),
                    known=(self._best[of, part], self._at[of, part], self._rest[of, part]),
                )

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b, few = self.blocks, False
        if self._table.shape[1] >= MANY:
            # Compared before subtracting the mean token, which can make two different centres equal.
            moved = (centres != self._last).any(1)
            few = 2 * int(moved.sum()) <= len(moved)
            self._last = centres
        longest = self._lay_centres(centres)
        # The longest of all centres that a remembered score refers to.
        self._longest = torch.maximum(self._longest, longest) if few else longest
        self._margin.copy_(margin_of(self._length + self._longest, centres.shape[1]))
        if few:
            for block, own in enumerate(torch.split(moved, [share for _, share in b.parts])):
                self._look_at_moved(block, own, centres)
        else:
            for tile in self._tiles:
                score = torch.bmm(tile.table, tile.columns, out=tile.score)
                picked = pick(score, tile.margin, self.x, tile.start, centres, tile.first, self.chunk)
                for known, found in zip(tile.known, picked, strict=True):
                    known.copy_(found)
        nearest: Tensor = self._at.flatten().index_select(0, b.place) + b.first.index_select(0, b.of_token)
        return nearest

    def _lay_centres(self, centres: Float[Tensor, "K D"]) -> Float[Tensor, ""]:
        """Writes every centre to its row of the table; returns the greatest |z|."""
        table, of_cluster = self._table.flatten(0, 1), self.blocks.of_cluster
        if compiled.serves(centres, table):
            longest = table.new_empty(1)
            given = (centres, self._origin, of_cluster, self._row, table, longest)
            loops.lay_centres(*(each.numpy() for each in given))
            return longest[0]
        z = centres - self._origin.index_select(0, of_cluster)
        square = (z * z).sum(1)
        table.index_copy_(0, self._row, torch.cat((2 * z, -square[:, None]), dim=1))
        return square.amax().sqrt()

    def _look_at_moved(self, b: int, moved: Bool[Tensor, " k"], centres: Float[Tensor, "K D"]) -> None:
        """Updates one block's tokens from the scores of its moved centres."""
        which = moved.nonzero().squeeze(1)
        if not len(which):
            return
        best, at, rest = self._best[b], self._at[b], self._rest[b]
        top, place, second = self._two_largest(b, which)
        # The old score of a moved centre is void.
        best.masked_fill_(moved.index_select(0, at), -torch.inf)
        stays = top <= best
        # The loser of the two joins the other centres.
        threat = torch.maximum(torch.minimum(top, best), second)
        torch.maximum(rest, threat, out=rest)
        torch.maximum(top, best, out=best)
        at.copy_(torch.where(stays, at, which.index_select(0, place)))
        # The nearest of the unmoved centres is still the nearest of them, however close they are.
        threat = torch.where(stays, threat, rest)
        doubtful = (threat >= best - self._margin[b]).nonzero().squeeze(1)
        # Usually a few tokens, but all of them if keys are equal.
        for tokens in torch.split(doubtful, self._at_once(len(moved))) if len(doubtful) else ():
            self._look_at_all(b, tokens, centres)

    def _at_once(self, centres: int) -> int:
        """The number of tokens, in whole lines, whose scores for this many centres fit the memory."""
        return len(self._memory) // centres // LINE * LINE

    def _two_largest(self, b: int, which: Int64[Tensor, " k"]) -> list[Tensor]:
        """:func:`two_largest` of every token's scores for some centres of a block."""
        table, found = self._table[b].index_select(0, which), []
        for columns in torch.split(self._columns[b], self._at_once(len(which)), dim=1):
            score = self._memory[: len(which) * columns.shape[1]].view(len(which), -1)
            found.append(two_largest(torch.mm(table, columns, out=score)[None]))
        return [torch.cat(parts, dim=1)[0] for parts in zip(*found, strict=True)]

    def _look_at_all(self, b: int, tokens: Int64[Tensor, " n"], centres: Float[Tensor, "K D"]) -> None:
        """Updates some tokens from the scores of all centres of the block."""
        start, share, first = self.blocks.start[b], self.blocks.parts[b][1], self.blocks.first[b : b + 1]
        score = self._memory[: len(tokens) * share].view(1, share, -1)
        torch.mm(self._table[b, :share], self._columns[b].index_select(1, tokens), out=score[0])
        own = self.x.index_select(0, start + tokens)
        margin = self._margin[b].index_select(0, tokens)[None]
        picked = pick(score, margin, own, torch.zeros_like(first), centres, first, self.chunk)
        for known, found in zip((self._best, self._at, self._rest), picked, strict=True):
            known[b].index_copy_(0, tokens, found[0])


def margin_of(reach: Float[Tensor, "*B n"], D: int) -> Float[Tensor, "*B n"]:
    """How far below the largest score 2 y.z - |z|^2 a centre can lie and still be the nearest.

    With u the unit roundoff, a score (D products and a square that is a sum of D) is within (2 D + 4) u (|y| + |z|)^2
    of the exact value and a direct sum within (D + 4) u (|y| + |z|)^2, and two centres are compared; eps is 2 u, the
    rest is slack. ``tiny`` covers squares that underflow. ``reach`` is |y| + |z| with the longest z scored, in R^D.
    """
    info = torch.finfo(reach.dtype)
    return reach.square().mul_((3 * D + 16) * info.eps).add_((3 * D + 16) * info.tiny)
