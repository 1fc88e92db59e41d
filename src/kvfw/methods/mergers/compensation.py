"""RazorAttention's compensation token (Tang et al. 2024, arXiv 2407.15891)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class Compensation(Part):
    """Keeps the tokens of most weight but one, and puts all others into one slot: their mean key and mean value.

    Of K slots K - 1 are the heaviest tokens; the last stands for the n others, at the place of the heaviest of them.
    With ``bias=log`` it has the logit bias ``ln n``, as in the paper.

    Paper: Tang et al. 2024, RazorAttention: Efficient KV Cache Compression Through Retrieval Heads, arXiv
    2407.15891: its compensation token; which heads need none is an allocator's matter.

    Deviations: the paper's mean is of the tokens between the first and the last ones; here of all that weigh least.
    Its place, where the paper names none, is that of the heaviest of them.
    """

    rows_apart: ClassVar[bool] = True

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        most = heaviest(state, weights, (budget - 1).clamp(min=0))
        # The one slot that is kept and not among the K - 1; heads of budget 0 have none, and nothing joins there.
        chosen = (kept & ~most).to(torch.uint8).argmax(-1, keepdim=True)
        own = torch.arange(state.width, device=kept.device)
        target = torch.where(kept, own, chosen)
        ones = state.valid.float()
        return folded(state, kept, target, state.valid & ~kept, ones, ones)
