"""D2O's merging of dropped tokens (Wan et al. 2024, arXiv 2406.13035)."""

from typing import ClassVar

from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest, nearest_kept
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class D2O(Part):
    """Folds dropped tokens into the kept token of most similar key, unless they are less alike than the others are.

    Kept are the tokens of most weight. A dropped token e joins the kept token k of highest cosine u of keys if u is
    at least ``threshold`` times the mean of the head's dropped tokens; key and value of k become the mean of its
    own with weight ``exp(1)`` and those of e with weight ``exp(u)``. The others are dropped.

    Paper: Wan et al. 2024, D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large
    Language Models, arXiv 2406.13035: its token-level part.

    Deviations: the threshold is each head's own; the paper's code filters by a mean over heads, and moves the
    threshold while decoding. Its scatter-mean multiplies by u and divides by a count, which shrinks keys; weights
    here add up to 1. The layers' budgets of the paper, by the variance of attention, are left to an allocator.
    """

    rows_apart: ClassVar[bool] = True
    loses_mass: ClassVar[bool] = True

    threshold: float = Field(1, ge=0, description="least similarity, relative to the mean of the dropped tokens")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        near = nearest_kept(state, kept)
        dropped = state.valid & ~kept
        mean = near.cosine.masked_fill(~dropped, 0.0).sum(-1, keepdim=True) / dropped.sum(-1, keepdim=True).clamp(min=1)
        # A mean of equal numbers may exceed them by rounding.
        joins = near.cosine >= self.threshold * mean - 1e-6
        share = near.cosine.exp()
        return folded(state, kept, near.target, joins, share, share)
