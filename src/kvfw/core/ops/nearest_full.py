"""Nearest centre of every token by looking at all centres of its block, many blocks side by side.

What is nearest, and why products only narrow the choice, says :mod:`kvfw.core.ops.nearest`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.blocks import LINE, Blocks
from kvfw.core.ops.products import closest, largest, margin_of, table_of


@dataclass(frozen=True)
class _Tile:
    """Some tokens of some blocks and the memory for their search, as views, which cost more to make than to use.

    Attributes:
        block, token: where the tile begins.
        tokens: their columns, and a row of ones.
        table: 2 z and -|z|^2 of the blocks' centres.
        margin: of every token.
        score: [blocks, centres, tokens].
        column: the place found for every token in its block's row of the table.
    """

    block: int
    token: int
    tokens: Float[Tensor, "b E n"]
    table: Float[Tensor, "b k E"]
    margin: Float[Tensor, "b 1 n"]
    score: Float[Tensor, "b k n"]
    column: Int64[Tensor, "b 1 n"]


class FullSearch:
    """Nearest centres of a fixed set of tokens, each among its own block's; asked again whenever the centres moved."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> None:
        self.x = x
        self.blocks = blocks
        self._chunk = chunk
        # Products are taken around the mean token: keys often share a large offset, and it would cost digits.
        # After each token a one, for what is added to its products.
        y = blocks.table(torch.cat((x, x.new_ones(len(x), 1)), dim=1), 0.0)
        origin = y.sum(1) / blocks.tokens[:, None]
        origin[:, -1] = 0
        y -= origin[:, None]
        self._origin = origin[:, :-1]
        # What fills up a block's row is no token: nothing compares with NaN.
        length = torch.linalg.vector_norm(y[..., :-1], dim=2)
        self._length = blocks.table(length.flatten().index_select(0, blocks.place), torch.nan)
        # Blocks of fewer centres are filled up with centres that are never the nearest (and whose score is NaN for what
        # is no token).
        k = max(share for _, share in blocks.parts)
        self._row = blocks.of_cluster * k + blocks.within
        self._table = y.new_zeros(len(y) * k, y.shape[2])
        self._table[:, -1] = -torch.inf
        self._margin = torch.empty_like(self._length)
        self._column = torch.empty_like(self._length, dtype=torch.int64)
        self._tiles = tuple(self._tiled(y, k))

    def only(self, blocks: Int64[Tensor, " some"], tokens: Int64[Tensor, " n"]) -> "FullSearch":
        """Of these blocks and their tokens alone."""
        return FullSearch(self.x.index_select(0, tokens), self.blocks.only(blocks), self._chunk)

    def _tiled(self, y: Float[Tensor, "B n E"], k: int) -> Iterator[_Tile]:
        """Tiles of at most ``chunk`` scores, which share the memory for them."""
        B, n, _ = y.shape
        some = min(n, max(LINE, self._chunk // k // LINE * LINE))
        passes = -(-B // max(1, self._chunk // (n * k)))
        together = -(-B // passes)
        memory = y.new_empty(together * k * some)
        table = self._table.view(B, k, -1)
        for block in range(0, B, together):
            of = slice(block, block + together)
            for token in range(0, n, some):
                part = of, slice(token, token + some)
                here, margin, column = y[part], self._margin[part], self._column[part]
                score = memory[: here.shape[0] * k * here.shape[1]].view(len(here), k, -1)
                yield _Tile(block, token, here.mT, table[of], margin[:, None], score, column[:, None])

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b = self.blocks
        z = centres - self._origin.index_select(0, b.of_cluster)
        table, longest = table_of(z)
        self._table.index_copy_(0, self._row, table)
        self._margin.copy_(margin_of(self._length + longest, z.shape[1]))
        doubtful: list[tuple[Int64[Tensor, " _"], Int64[Tensor, " _"], Bool[Tensor, "_ k"]]] = []
        for tile in self._tiles:
            score = torch.bmm(tile.table, tile.tokens, out=tile.score)
            best, column = largest(score)
            tile.column.copy_(column)
            score.scatter_(1, column, -torch.inf)
            bound = best.sub_(tile.margin)
            block, _, token = (score.amax(1, keepdim=True) >= bound).nonzero(as_tuple=True)
            if len(token):
                rivals = score[block, :, token] >= bound[block, :, token]
                doubtful.append((block.add_(tile.block), token.add_(tile.token), rivals))
                # A few tokens as a rule, but all of them where keys are equal.
                if sum(among.numel() for _, _, among in doubtful) >= self._chunk:
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
        self._column[block, token] = closest(x, centres, row, rival + first[row], self._chunk) - first
