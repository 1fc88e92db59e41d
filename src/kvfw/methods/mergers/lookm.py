"""LOOK-M's merging strategies (Wan et al. 2024, arXiv 2406.18139)."""

from typing import ClassVar, Literal

from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest, nearest_kept
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class LookM(Part):
    """Folds every dropped token into the kept token of most similar key: plain, pivotal or weighted mean.

    Kept are the tokens of most weight. For a kept token s and the m tokens e that join it, key and value become

    - ``average``: ``(s + sum e) / (m + 1)``;
    - ``pivot``: ``(s + sum (s + e) / 2) / (m + 1)``;
    - ``weighted``: ``(s + sum u e) / (1 + sum u)`` with the cosine u of keys, 0 where it is negative.

    Paper: Wan et al. 2024, LOOK-M: Look-Once Optimization in KV Cache for Efficient Multimodal Long-Context
    Inference, arXiv 2406.18139.

    Deviations: text and image tokens are not told apart here. In the paper's weighted merging the divisor is a count;
    here weights add up to 1.
    """

    rows_apart: ClassVar[bool] = True

    how: Literal["average", "pivot", "weighted"] = Field("average", description="the mean that is taken")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        near = nearest_kept(state, kept)
        dropped = state.valid & ~kept
        ones = dropped.float() + kept
        if self.how == "weighted":
            ones = near.cosine.clamp(min=0).masked_fill(kept, 1.0)
        elif self.how == "pivot":
            joining = ones.new_zeros(ones.shape).scatter_add(2, near.target, dropped.float())
            ones = (1 + joining / 2).where(kept, 0.5)
        return folded(state, kept, near.target, dropped, ones, ones)
