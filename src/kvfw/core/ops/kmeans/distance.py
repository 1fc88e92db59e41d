"""Squared distances, as sums of squared differences of one token and one centre alone."""

from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops import compiled


def squared_distance(x: Float[Tensor, "p D"], c: Float[Tensor, "p D"]) -> Float[Tensor, " p"]:
    """Of corresponding rows."""
    return (x - c).square_().sum(1)


def to_own(
    x: Float[Tensor, "N D"], centres: Float[Tensor, "K D"], assignment: Int64[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Of every token to the centre it is assigned to."""
    if not compiled.serves(x, centres):
        return squared_distance(x, centres.index_select(0, assignment))
    far = x.new_empty(len(x))
    compiled.distance_to_own(x.numpy(), centres.numpy(), assignment.numpy(), far.numpy())
    return far
