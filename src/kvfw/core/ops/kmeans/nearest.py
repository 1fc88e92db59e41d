"""Nearest centre of every token, by direct squared distance, among the centres of the token's own block.

"|x - c|^2" means the sum of squared differences, computed from one token and one centre alone. The matrix product
2 x.c - |c|^2 only narrows the choice to centres that rounding could make nearest, which are then compared by that sum.
So equal tokens are equally far, ties are real ties, and neither the chunk size nor the number of threads shows in the
result. (The margin assumes torch's default, full-precision float32 products: with TF32 switched on, a token can go to a
centre that is nearest only within TF32's rounding.)
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.kmeans.blocks import Blocks
from kvfw.core.ops.kmeans.nearest_full import FullSearch
from kvfw.core.ops.kmeans.nearest_moved import MovedSearch

CHUNK = 5 * 2**18
"""Default size, in elements, of the largest token-by-centre block held at once: 5 MiB of float32. Measured on heads of
2387 tokens and 149 clusters, half to twice as much is as fast, a tenth of it up to a third slower."""

MANY = 256
"""From so many centres per block on it is faster to look only at those that moved."""


@runtime_checkable
class Search(Protocol):
    """Finds nearest centres of a fixed set of tokens ``x`` in ``blocks``, for one set of centres after another."""

    x: Float[Tensor, "N D"]
    blocks: Blocks

    def nearest(self, centres: Float[Tensor, "K D"]) -> Int64[Tensor, " N"]:
        """Index of the nearest centre of every token, ties to the lowest."""
        ...

    def only(self, blocks: Int64[Tensor, " some"], tokens: Int64[Tensor, " n"]) -> "Search":
        """The search in some of the blocks; ``tokens`` are theirs. This one must not be used any more."""
        ...


def search_of(x: Float[Tensor, "N D"], blocks: Blocks, chunk: int) -> Search:
    """A search that holds at most ``chunk`` scores at once, but at least those of 16 tokens in one block.

    Which of the two it is shows only in the time it takes.
    """
    if max(clusters for _, clusters in blocks.parts) >= MANY:
        return MovedSearch.of(x, blocks, chunk)
    return FullSearch.of(x, blocks, chunk)
