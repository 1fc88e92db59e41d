"""Values folded into the most similar token: MergingPress of NVIDIA's kvpress."""

from typing import ClassVar

from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest, nearest_kept
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class NearestValue(Part):
    """Folds the value of every dropped token into the kept token whose key is most like its own; keys stay.

    Kept are the tokens of most weight. A dropped token e joins the kept token k of highest cosine c of keys, if it is
    not negative: ``v_k <- (v_k + sum_e w_e v_e) / (1 + sum_e w_e)``, ``w_e = c ||v_e|| / (||v_e|| + ||v_k||)``.

    Source: MergingPress of NVIDIA's kvpress (2026), which has no paper.

    Deviations: rows of a batch and heads choose for themselves. Tokens of negative cosine are dropped with their
    mass.
    """

    rows_apart: ClassVar[bool] = True
    loses_mass: ClassVar[bool] = True

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        near = nearest_kept(state, kept)
        size = state.values.float().norm(dim=-1)
        other = size.gather(2, near.target)
        share = near.cosine.clamp(min=0) * size / (size + other).clamp(min=1e-30)
        none = kept.to(share.dtype)
        return folded(state, kept, near.target, near.cosine >= 0, none, share.masked_fill(kept, 1.0))
