"""What searches for nearest centres share: the largest scores, how far scores can be off, the decision by distance.

The score of centre z for token y, both seen from the mean token, is 2 y.z - |z|^2. It is one product where y is
followed by a one and 2 z by -|z|^2: adding the square apart takes a fifth longer.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import max_pool2d_with_indices


def table_of(z: Float[Tensor, "K D"]) -> tuple[Float[Tensor, "K E"], Float[Tensor, ""]]:
    """2 z and -|z|^2 of every centre, side by side, and the greatest |z|."""
    square = (z * z).sum(1)
    return torch.cat((2 * z, -square[:, None]), dim=1), square.amax().sqrt()


def closest(
    x: Float[Tensor, "n D"],
    centres: Float[Tensor, "K D"],
    row: Int64[Tensor, " p"],
    column: Int64[Tensor, " p"],
    chunk: int,
) -> Int64[Tensor, " n"]:
    """Decides between the candidate rows of ``centres`` that every row of ``x`` has, by the direct sum.

    Args:
        x: tokens.
        centres: all centres.
        row, column: the candidates, as pairs of a token and a centre.
        chunk: greatest number of differences held at once, but at least one pair's.
    """
    far = x.new_empty(len(row))
    pairs = max(1, chunk // x.shape[1])
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


def margin_of(reach: Float[Tensor, "*B n"], D: int) -> Float[Tensor, "*B n"]:
    """How far below the largest score 2 y.z - |z|^2 a centre can lie and still be the nearest.

    With u the unit roundoff, a score (D products and a square that is a sum of D) is within (2 D + 4) u (|y| + |z|)^2
    of the truth and a direct sum within (D + 4) u (|y| + |z|)^2, and two centres are compared; eps is 2 u, the rest is
    slack. ``tiny`` is for squares that underflow.

    Args:
        reach: |y| + |z| with the longest z of all that were scored.
        D: coordinates.
    """
    info = torch.finfo(reach.dtype)
    return reach.square().mul_((3 * D + 16) * info.eps).add_((3 * D + 16) * info.tiny)


def largest(score: Float[Tensor, "b k n"]) -> tuple[Float[Tensor, "b 1 n"], Int64[Tensor, "b 1 n"]]:
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
