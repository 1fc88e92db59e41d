"""Nearest centre of every token, by direct squared distance, among the centres of the token's own block.

"|x - c|^2" means the sum of squared differences, computed from one token and one centre alone. The matrix product
2 x.c - |c|^2 only narrows the choice to centres that rounding could make nearest, which are then compared by that sum.
So equal tokens are equally far, ties are real ties, and neither the chunk size nor the number of threads shows in the
result. (The margin assumes torch's default, full-precision float32 products: with TF32 switched on, a token can go to a
centre that is nearest only within TF32's rounding.)
"""

import itertools

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import max_pool2d_with_indices

from kvfw.core.ops.blocks import LINE, Blocks

CHUNK = 5 * 2**17
"""Default size, in elements, of the largest token-by-centre block held at once: 2 MiB of float32. Measured on heads of
2387 tokens and 149 clusters, a half and a quarter of it are as fast, twice to eight times up to a third slower."""


class Search:
    """Nearest centres of a fixed set of tokens, each among its own block's; asked again whenever the centres moved."""

    def __init__(self, x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> None:
        self.x = x
        self.blocks = blocks
        self.chunk = chunk
        self._score = x.new_empty(0)
        # Products are taken around the mean token: keys often share a large offset, and it would cost digits.
        self.y = blocks.table(x, 0.0)
        self.origin = self.y.sum(1) / blocks.tokens[:, None]
        self.y -= self.origin[:, None]
        # What fills up a block's row is no token: nothing compares with NaN.
        length = torch.linalg.vector_norm(self.y, dim=2)
        self.length = blocks.table(length.flatten().index_select(0, blocks.place), torch.nan)

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        b, (B, n, D) = self.blocks, self.y.shape
        z = centres - self.origin.index_select(0, b.of_cluster)
        square = (z * z).sum(1)
        margin = _margin(self.length, square, D)
        # Blocks of fewer centres are filled up with centres that are never the nearest.
        k = max(share for _, share in b.parts)
        row = b.of_cluster * k + b.within
        table = z.new_zeros(B * k, D).index_copy_(0, row, z).view(B, k, D)
        offset = z.new_full((B * k,), -torch.inf).index_copy_(0, row, -square).view(B, k)

        index = b.first.new_empty(B, n)
        doubtful: list[tuple[Int64[Tensor, " m"], Int64[Tensor, " p"], Int64[Tensor, " p"]]] = []
        some = min(n, max(LINE, self.chunk // k // LINE * LINE))
        passes = -(-B // max(1, self.chunk // (n * k)))
        together = -(-B // passes)
        # Asked for once: memory fresh from the system costs more than what is done in it.
        if self._score.numel() < together * k * some:
            self._score = z.new_empty(together * k * some)
        for first in range(0, B, together):
            blocks = slice(first, first + together)
            for start in range(0, n, some):
                part = blocks, slice(start, start + some)
                here = self.y[part]
                s = self._score[: here.shape[0] * k * here.shape[1]].view(here.shape[0], k, -1)
                torch.baddbmm(offset[blocks, :, None], table[blocks], here.mT, alpha=2, out=s)
                best, column = _largest(s)
                index[part] = column
                s.scatter_(1, column[:, None], -torch.inf)
                bound = best - margin[part]
                block, token = (s.amax(1) >= bound).nonzero(as_tuple=True)
                if len(token):
                    near = s[block, :, token] >= bound[block, token][:, None]
                    near.scatter_(1, column[block, token][:, None], True)
                    row, rival = near.nonzero(as_tuple=True)
                    block += first
                    doubtful.append((b.start[block] + token.add_(start), row, rival.add_(b.first[block][row])))
        nearest: Tensor = index.flatten().index_select(0, b.place) + b.first.index_select(0, b.of_token)
        if doubtful:
            tokens, rows, rivals = zip(*doubtful, strict=True)
            before = itertools.accumulate((len(which) for which in tokens), initial=0)
            row = torch.cat([row + there for row, there in zip(rows, before, strict=False)])
            which = torch.cat(tokens)
            nearest[which] = self._closest(self.x.index_select(0, which), centres, row, torch.cat(rivals))
        return nearest

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


def _margin(length: Float[Tensor, "B n"], square: Float[Tensor, " k"], D: int) -> Float[Tensor, "B n"]:
    """How far below the largest score 2 y.z - |z|^2 a centre can lie and still be the nearest.

    Score and direct sum are each within (D + 4) unit roundoffs of the truth, relative to (|y| + |z|)^2,
    and two centres are compared; eps is two unit roundoffs, the rest is slack. ``tiny`` is for squares
    that underflow.
    """
    reach = length + square.amax().sqrt()
    info = torch.finfo(length.dtype)
    return reach.square_().mul_(2 * (D + 8) * info.eps).add_(2 * (D + 8) * info.tiny)


def _largest(score: Float[Tensor, "B k n"]) -> tuple[Float[Tensor, "B n"], Int64[Tensor, "B n"]]:
    """Largest score of every token and where it is.

    On a CPU ``max`` with indices looks at one number at a time, but pooling over pictures whose channels lie side by
    side looks at as many as the processor can: eight times faster here.
    """
    if score.device.type != "cpu":
        best, at = score.max(1)
        return best, at
    best, at = max_pool2d_with_indices(score[:, :, None].permute(0, 3, 1, 2), (score.shape[1], 1))
    return best[:, :, 0, 0], at[:, :, 0, 0]
