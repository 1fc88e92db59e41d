"""Scores of centres: what is multiplied, and how far that can be off.

The score of centre z for token y, both seen from the mean token, is 2 y.z - |z|^2. It is one product where y is
followed by a one and 2 z by -|z|^2: adding the square apart takes a fifth longer.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops import compiled


def table_of(z: Float[Tensor, "K D"]) -> tuple[Float[Tensor, "K E"], Float[Tensor, ""]]:
    """2 z and -|z|^2 of every centre, side by side, and the greatest |z|."""
    square = (z * z).sum(1)
    return torch.cat((2 * z, -square[:, None]), dim=1), square.amax().sqrt()


def lay_centres(
    centres: Float[Tensor, "K D"],
    origin: Float[Tensor, "B D"],
    of_cluster: Int64[Tensor, " K"],
    row: Int64[Tensor, " K"],
    table: Float[Tensor, "R E"],
) -> Float[Tensor, ""]:
    """:func:`table_of` every centre as seen from its block's origin, written to its row of a table.

    Args:
        centres: centres.
        origin: of every block.
        of_cluster: the block of every centre.
        row: its row.
        table: written.

    Returns:
        The greatest |z|.
    """
    if compiled.serves(centres, origin, table):
        longest = centres.new_zeros(1)
        compiled.lay_centres(*(each.numpy() for each in (centres, origin, of_cluster, row, table, longest)))
        return longest[0]
    rows, greatest = table_of(centres - origin.index_select(0, of_cluster))
    table.index_copy_(0, row, rows)
    return greatest


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
