"""Nearest centre of every token by looking at all centres of its block, many blocks side by side.

What is nearest, and why products only narrow the choice, says :mod:`kvfw.core.ops.kmeans.nearest`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.kmeans.blocks import LINE, Blocks
from kvfw.core.ops.kmeans.picking import pick
from kvfw.core.ops.kmeans.products import lay_centres, margin_of


@dataclass(frozen=True)
class _Tile:
    """Some tokens of some blocks and the memory for their search, as views, which cost more to make than to use.

    Attributes:
        columns: the tokens side by side, and a row of ones.
        margin: of every token.
        start: where a block's tokens begin.
        table: 2 z and -|z|^2 of the blocks' centres.
        first: where a block's centres begin.
        score: memory.
        at: the place found for every token in its block's row of the table.
    """

    columns: Float[Tensor, "b E n"]
    margin: Float[Tensor, "b n"]
    start: Int64[Tensor, " b"]
    table: Float[Tensor, "b k E"]
    first: Int64[Tensor, " b"]
    score: Float[Tensor, "b k n"]
    at: Int64[Tensor, "b n"]


@dataclass(frozen=True)
class _Laid:
    """Tokens laid out for products.

    Attributes:
        origin: mean token of every block. Products are taken around it: keys often share a large offset, and it would
            cost digits.
        columns: tokens as seen from there, side by side (their products take two thirds of the time), and below each
            a one, for what is added to its products.
        length: of every token; NaN for what fills up a block's row, as nothing compares with that.
    """

    origin: Float[Tensor, "B D"]
    columns: Float[Tensor, "B E n"]
    length: Float[Tensor, "B n"]

    @classmethod
    def out(cls, x: Float[Tensor, "N D"], blocks: Blocks) -> "_Laid":
        """All tokens."""
        B, n, D = len(blocks.parts), blocks.width, x.shape[1]
        origin, length = x.new_empty(B, D), x.new_full((B, n), torch.nan)
        columns = x.new_ones(B, D + 1, n)
        # Memory of its own and whole rows, as that is copied sideways the fastest. What fills up a row is whatever was
        # there before: it is no token.
        rows = x.new_zeros(n, D)
        for b, part in enumerate(torch.split(x, [tokens for tokens, _ in blocks.parts])):
            own = rows[: len(part)]
            torch.mean(part, 0, out=origin[b])
            torch.sub(part, origin[b], out=own)
            torch.linalg.vector_norm(own, dim=1, out=length[b, : len(part)])
            columns[b, :D].copy_(rows.T)
        return cls(origin, columns, length)

    def only(self, blocks: Int64[Tensor, " some"], width: int) -> "_Laid":
        """Those of some blocks, the longest of which is so wide."""
        columns, length = self.columns.index_select(0, blocks), self.length.index_select(0, blocks)
        return _Laid(self.origin.index_select(0, blocks), columns[..., :width], length[..., :width].contiguous())


class FullSearch:
    """Nearest centres of a fixed set of tokens, each among its own block's; asked again whenever the centres moved."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int, laid: _Laid) -> None:
        self.x = x
        self.blocks = blocks
        self._chunk = chunk
        self._laid = laid
        # Blocks of fewer centres are filled up with centres that are never the nearest.
        k = max(share for _, share in blocks.parts)
        self._row = blocks.of_cluster * k + blocks.within
        self._table = x.new_zeros(len(blocks.parts) * k, laid.columns.shape[1])
        self._table[:, -1] = -torch.inf
        self._margin = torch.empty_like(laid.length)
        self._at = torch.empty_like(laid.length, dtype=torch.int64)
        self._tiles = tuple(self._tiled(laid.columns, k))

    @classmethod
    def of(cls, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> "FullSearch":
        """A search that has not seen any centres; see :func:`kvfw.core.ops.kmeans.nearest.search_of`."""
        return cls(x, blocks, chunk, _Laid.out(x, blocks))

    def only(self, blocks: Int64[Tensor, " some"], tokens: Int64[Tensor, " n"]) -> "FullSearch":
        """Of these blocks and their tokens alone."""
        rest = self.blocks.only(blocks)
        return FullSearch(self.x.index_select(0, tokens), rest, self._chunk, self._laid.only(blocks, rest.width))

    def _tiled(self, columns: Float[Tensor, "B E n"], k: int) -> Iterator[_Tile]:
        """Tiles of at most ``chunk`` scores, which share the memory for them."""
        B, _, n = columns.shape
        some = min(n, max(LINE, self._chunk // k // LINE * LINE))
        passes = -(-B // max(1, self._chunk // (n * k)))
        together = -(-B // passes)
        memory = columns.new_empty(together * k * some)
        table = self._table.view(B, k, -1)
        for block in range(0, B, together):
            of = slice(block, block + together)
            for token in range(0, n, some):
                part = slice(token, token + some)
                at = self._at[of, part]
                yield _Tile(
                    columns=columns[of, :, part],
                    margin=self._margin[of, part],
                    start=self.blocks.start[of] + token,
                    table=table[of],
                    first=self.blocks.first[of],
                    score=memory[: at.numel() * k].view(len(at), k, -1),
                    at=at,
                )

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b = self.blocks
        longest = lay_centres(centres, self._laid.origin, b.of_cluster, self._row, self._table)
        self._margin.copy_(margin_of(self._laid.length + longest, centres.shape[1]))
        for tile in self._tiles:
            score = torch.bmm(tile.table, tile.columns, out=tile.score)
            picked = pick(score, tile.margin, self.x, tile.start, centres, tile.first, self._chunk)
            tile.at.copy_(picked.at)
        nearest: Tensor = self._at.flatten().index_select(0, b.place) + b.first.index_select(0, b.of_token)
        return nearest
