"""Attention-weighted E-Means: weighted k-means of keys, one clustering per row and KV head."""

from typing import ClassVar

from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState

#: Floor on the weights, as a share of their mean, so that no token has weight 0.
WEIGHT_FLOOR = 1e-3


class EWMeans(Part):
    """Clusters keys by weighted Lloyd iterations and replaces each cluster by its weighted means.

    With weights ``a_i`` (a scorer's scores plus 1e-3 of their mean) a cluster's key, value and position are
    ``sum(a x) / sum(a)``, and its mass is the sum of its members' masses. Tokens go to the centre of least squared
    Euclidean distance; iteration stops after ``iters`` assignments, or earlier when they are stable. A cluster of one
    token is that token bit for bit.

    Source: the founding experiment names this method; no public code or paper defines it beyond that description, so
    this is a reconstruction.

    Deviations: unknown, for lack of a reference. kvfw's own choices are the initial centres (evenly spaced tokens, so
    that nothing is random), the floor on the weights, and that an empty cluster takes the token of largest weighted
    distance from a cluster of two or more. Without ``block`` the cost grows with the square of the prompt's length;
    with it, linearly.
    """

    rows_apart: ClassVar[bool] = True

    iters: int = Field(8, ge=1, le=1000, description="at most this many assignments; stops when they are stable")
    block: int | None = Field(None, ge=1, description="cluster within contiguous blocks of this many tokens")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        # Imported here because they import numba, which describing the part does not need.
        from kvfw.core.ops.clusters import HeadTokens, merge_heads
        from kvfw.core.ops.kmeans import clusters_of_heads

        def clusters(tokens: HeadTokens, count: int) -> Int64[Tensor, "G n"]:
            return clusters_of_heads(tokens.keys, tokens.weights, count, self.iters, self.block)

        return merge_heads(state, weights, budget, clusters, floor=WEIGHT_FLOOR)
