"""Nearest centre of every token: scores narrow the choice, distances decide it.

On a CPU both steps are compiled loops, elsewhere torch operations. Their choices agree unless two distances differ by
less than their rounding.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops import compiled
from kvfw.core.ops.kmeans import loops


class Picked(NamedTuple):
    """One centre of every token, by its place in the block: its score, and the others' largest score (-inf if none)."""

    best: Float[Tensor, "b n"]
    at: Int64[Tensor, "b n"]
    second: Float[Tensor, "b n"]


def two_largest(score: Float[Tensor, "b k n"]) -> Picked:
    """The centre of the largest score, ties to the first. No score may be NaN."""
    if not compiled.serves(score):
        return _two_largest(score)
    best, second = score.new_empty(2, len(score), score.shape[2])
    picked = Picked(best, torch.empty_like(best, dtype=torch.int64), second)
    loops.two_largest(score.numpy(), *(each.numpy() for each in picked))
    return picked


def pick(
    score: Float[Tensor, "b k n"],
    margin: Float[Tensor, "b n"],
    x: Float[Tensor, "N D"],
    start: Int64[Tensor, " b"],
    centres: Float[Tensor, "K D"],
    first: Int64[Tensor, " b"],
    chunk: int,
) -> Picked:
    """The nearest centre of every token, ties to the first, among those with a score within the margin of the best.

    Args:
        score: of every block's centres, for its tokens.
        margin: see :func:`kvfw.core.ops.kmeans.nearest.margin_of`; NaN for padding.
        x: tokens; a block's are in order from ``start`` on.
        centres: centres; a block's are in order from ``first`` on.
        chunk: most differences held at once, but at least one pair's.
    """
    picked = two_largest(score)
    if not compiled.serves(score):
        return _decided(picked, score, margin, x, start, centres, first, chunk)
    # The loops are compiled for one memory layout.
    given = (score, margin.contiguous(), x, start, centres, first, *picked)
    loops.decide(*(each.numpy() for each in given))
    return picked


def _two_largest(score: Float[Tensor, "b k n"]) -> Picked:
    best, at = score.max(1, keepdim=True)
    second = score.scatter_(1, at, -torch.inf).amax(1)
    score.scatter_(1, at, best)
    return Picked(best[:, 0], at[:, 0], second)


def _decided(
    picked: Picked,
    score: Float[Tensor, "b k n"],
    margin: Float[Tensor, "b n"],
    x: Float[Tensor, "N D"],
    start: Int64[Tensor, " b"],
    centres: Float[Tensor, "K D"],
    first: Int64[Tensor, " b"],
    chunk: int,
) -> Picked:
    bound = picked.best - margin
    block, token = (picked.second >= bound).nonzero(as_tuple=True)
    if not len(token):
        return picked
    row, rival = (score[block, :, token] >= bound[block, token, None]).nonzero(as_tuple=True)
    lowest = first[block]
    own = x.index_select(0, start[block] + token)
    at = _closest(own, centres, row, rival + lowest[row], chunk) - lowest
    changed = at != picked.at[block, token]
    block, token, at = block[changed], token[changed], at[changed]
    picked.second[block, token] = picked.best[block, token]
    picked.best[block, token] = score[block, at, token]
    picked.at[block, token] = at
    return picked


def _closest(
    x: Float[Tensor, "n D"],
    centres: Float[Tensor, "K D"],
    row: Int64[Tensor, " p"],
    column: Int64[Tensor, " p"],
    chunk: int,
) -> Int64[Tensor, " n"]:
    """Every token's nearest candidate centre by the direct sum; (``row``, ``column``) pairs token and candidate."""
    far = x.new_empty(len(row))
    pairs = max(1, chunk // x.shape[1])
    for start in range(0, len(row), pairs):
        some = slice(start, start + pairs)
        far[some] = _squared_distance(x.index_select(0, row[some]), centres.index_select(0, column[some]))
    least = far.new_full(x.shape[:1], torch.inf).scatter_reduce(0, row, far, "amin")
    wins = far == least[row]
    lowest = column.new_full(x.shape[:1], len(centres))
    return lowest.scatter_reduce(0, row[wins], column[wins], "amin")


def to_own(
    x: Float[Tensor, "N D"], centres: Float[Tensor, "K D"], assignment: Int64[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Squared distance of every token to its assigned centre."""
    if not compiled.serves(x, centres):
        return _squared_distance(x, centres.index_select(0, assignment))
    far = x.new_empty(len(x))
    loops.distance_to_own(x.numpy(), centres.numpy(), assignment.numpy(), far.numpy())
    return far


def _squared_distance(x: Float[Tensor, "p D"], c: Float[Tensor, "p D"]) -> Float[Tensor, " p"]:
    """Squared distance of corresponding rows."""
    return (x - c).square_().sum(1)
