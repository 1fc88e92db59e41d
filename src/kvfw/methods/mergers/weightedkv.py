"""WeightedKV (Yuan et al. 2025, arXiv 2503.01330)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest, next_kept
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class WeightedKV(Part):
    """Drops keys, and folds the value of a dropped token into the next kept one, weighted by attention.

    Kept are the tokens of most weight a; the value of a kept token becomes ``sum a v / sum a`` over itself and the
    dropped tokens right before it (after it, for the last one).

    Paper: Yuan et al. 2025, WeightedKV: Attention Scores Weighted Key-Value Cache Merging for Large Language Models,
    arXiv 2503.01330.

    Deviations: the paper evicts one token at a step, so that values move on from token to token; here the prompt is
    compressed at once. That the neighbour is the next token is taken from a restatement of the paper.
    """

    rows_apart: ClassVar[bool] = True

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        # Kept tokens weigh something, so that there is a mean; scaled, so that no sum overflows.
        top = weights.float().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        share = weights.float() / top
        share = torch.where(kept, share.clamp(min=1e-12), share)
        return folded(state, kept, next_kept(kept), state.valid & ~kept, kept.float(), share)
