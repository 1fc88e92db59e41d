"""Nearest centre of every token, by direct squared distance, among the centres of the token's own block.

"|x - c|^2" means the sum of squared differences, computed from one token and one centre alone. The matrix product
2 x.c - |c|^2 only narrows the choice to centres that rounding could make nearest, which are then compared by that sum.
So equal tokens are equally far, ties are real ties, and neither the chunk size nor the number of threads shows in the
result. (The margin assumes torch's default, full-precision float32 products: with TF32 switched on, a token can go to a
centre that is nearest only within TF32's rounding.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import max_pool2d_with_indices

from kvfw.core.ops.blocks import LINE, Blocks

CHUNK = 5 * 2**17
"""Default size, in elements, of the largest token-by-centre block held at once: 2.5 MiB of float32. Measured on heads
of 2387 tokens and 149 clusters, a quarter of it is as fast, two to eight times as much up to a third slower."""


@dataclass(frozen=True)
class _Tile:
    """Some tokens of some blocks and the memory for their search, as views, which cost more to make than to use.

    Attributes:
        block, token: where the tile begins.
        tokens: their columns.
        table, offset: centres of the blocks, and what is added to their products.
        margin: of every token.
        score: [blocks, centres, tokens].
        column: the place found for every token in its block's row of the table.
    """

    block: int
    token: int
    tokens: Float[Tensor, "b D n"]
    table: Float[Tensor, "b k D"]
    offset: Float[Tensor, "b k 1"]
    margin: Float[Tensor, "b 1 n"]
    score: Float[Tensor, "b k n"]
    column: Int64[Tensor, "b 1 n"]


class Search:
    """Nearest centres of a fixed set of tokens, each among its own block's; asked again whenever the centres moved."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> None:
        self.x = x
        self.blocks = blocks
        self.chunk = chunk
        # Products are taken around the mean token: keys often share a large offset, and it would cost digits.
        y = blocks.table(x, 0.0)
        self._origin = y.sum(1) / blocks.tokens[:, None]
        y -= self._origin[:, None]
        # What fills up a block's row is no token: nothing compares with NaN.
        length = torch.linalg.vector_norm(y, dim=2)
        self._length = blocks.table(length.flatten().index_select(0, blocks.place), torch.nan)
        # Blocks of fewer centres are filled up with centres that are never the nearest.
        B, n, D = y.shape
        k = max(share for _, share in blocks.parts)
        self._row = blocks.of_cluster * k + blocks.within
        self._table, self._offset = y.new_zeros(B * k, D), y.new_full((B * k,), -torch.inf)
        self._margin = torch.empty_like(self._length)
        self._column = blocks.first.new_empty(B, n)
        self._tiles = tuple(self._tiled(y, k))

    def _tiled(self, y: Float[Tensor, "B n D"], k: int) -> Iterator[_Tile]:
        """Tiles of at most ``chunk`` scores, which share the memory for them."""
        B, n, _ = y.shape
        some = min(n, max(LINE, self.chunk // k // LINE * LINE))
        passes = -(-B // max(1, self.chunk // (n * k)))
        together = -(-B // passes)
        memory = y.new_empty(together * k * some)
        table, offset = self._table.view(B, k, -1), self._offset.view(B, k, 1)
        for block in range(0, B, together):
            of = slice(block, block + together)
            for token in range(0, n, some):
                part = of, slice(token, token + some)
                here, margin, column = y[part], self._margin[part], self._column[part]
                score = memory[: here.shape[0] * k * here.shape[1]].view(len(here), k, -1)
                yield _Tile(block, token, here.mT, table[of], offset[of], margin[:, None], score, column[:, None])

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b = self.blocks
        z = centres - self._origin.index_select(0, b.of_cluster)
        square = (z * z).sum(1)
        self._table.index_copy_(0, self._row, z)
        self._offset.index_copy_(0, self._row, -square)
        torch.add(self._length, square.amax().sqrt(), out=self._margin)
        _to_margin(self._margin, z.shape[1])
        doubtful: list[tuple[Int64[Tensor, " _"], Int64[Tensor, " _"], Bool[Tensor, "_ k"]]] = []
        for tile in self._tiles:
            score = torch.baddbmm(tile.offset, tile.table, tile.tokens, alpha=2, out=tile.score)
            best, column = _largest(score)
            tile.column.copy_(column)
            score.scatter_(1, column, -torch.inf)
            bound = best.sub_(tile.margin)
            block, _, token = (score.amax(1, keepdim=True) >= bound).nonzero(as_tuple=True)
            if len(token):
                rivals = score[block, :, token] >= bound[block, :, token]
                doubtful.append((block.add_(tile.block), token.add_(tile.token), rivals))
                # A few tokens as a rule, but all of them where keys are equal.
                if sum(among.numel() for _, _, among in doubtful) >= self.chunk:
                    self._decide(doubtful, centres)
                    doubtful = []
        if doubtful:
            self._decide(doubtful, centres)
        nearest: Tensor = self._column.flatten().index_select(0, b.place) + b.first.index_select(0, b.of_token)
        return nearest

    def _decide(
        self,
        doubtful: list[tuple[Int64[Tensor, " _"], Int64[Tensor, " _"], Bool[Tensor, "_ k"]]],
        centres: Float[Tensor, "K D"],
    ) -> None:
        """Replaces what was found for tokens that have rivals: their block, their place in it, and who is one."""
        block, token, among = map(torch.cat, zip(*doubtful, strict=True))
        among.scatter_(1, self._column[block, token][:, None], True)
        row, rival = among.nonzero(as_tuple=True)
        first = self.blocks.first[block]
        x = self.x.index_select(0, self.blocks.start[block] + token)
        self._column[block, token] = self._closest(x, centres, row, rival + first[row]) - first

    def _closest(
        self,
        x: Float[Tensor, "n D"],
        centres: Float[Tensor, "K D"],
        row: Int64[Tensor, " p"],
        column: Int64[Tensor, " p"],
    ) -> Int64[Tensor, " n"]:
        """Decides between the candidate rows of ``centres`` that every row of ``x`` has, by the direct sum."""
        far = x.new_empty(len(row))
        pairs = max(1, self.chunk // x.shape[1])
        for start in range(0, len(row), pairs):
            some = slice(start, start + pairs)
            far[some] = squared_distance(x.index_select(0, row[some]), centres.index_select(0, column[some]))
        least = far.new_full(x.shape[:1], torch.inf).scatter_reduce(0, row, far, "amin")
        wins = far == least[row]
        lowest = column.new_full(x.shape[:1], len(centres))
        return lowest.scatter_reduce(0, row[wins], column[wins], "amin")


def squared_distance(x: Float[Tensor, "p D"], c: Float[Tensor, "p D"]) -> Float[Tensor, " p"]:
    """Sum of squared differences of corresponding rows."""
    return (x - c).square_().sum(1)


def _whole_lines(numbers: int) -> int:
    """The next multiple of :data:`LINE`."""
    return -(-numbers // LINE) * LINE


def _to_margin(reach: Float[Tensor, "B n"], D: int) -> None:
    """In place: how far below the largest score 2 y.z - |z|^2 a centre can lie and still be the nearest.

    Score and direct sum are each within (D + 4) unit roundoffs of the truth, relative to (|y| + |z|)^2,
    and two centres are compared; eps is two unit roundoffs, the rest is slack. ``tiny`` is for squares
    that underflow.

    Args:
        reach: |y| + |z| with the longest z.
        D: coordinates.
    """
    info = torch.finfo(reach.dtype)
    reach.square_().mul_(2 * (D + 8) * info.eps).add_(2 * (D + 8) * info.tiny)


def _largest(score: Float[Tensor, "b k n"]) -> tuple[Float[Tensor, "b 1 n"], Int64[Tensor, "b 1 n"]]:
    """Largest score of every token and where it is.

    On a CPU ``max`` with indices looks at one number at a time, but pooling over pictures whose channels lie side by
    side looks at as many as the processor can: eight times faster here.
    """
    if score.device.type != "cpu":
        best, at = score.max(1, keepdim=True)
        return best, at
    blocks, centres, tokens = score.shape
    best, at = max_pool2d_with_indices(score[:, :, None].permute(0, 3, 1, 2), (centres, 1))
    return best.view(blocks, 1, tokens), at.view(blocks, 1, tokens)
