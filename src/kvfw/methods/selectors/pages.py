"""Whole pages of the cache, as engines with paged attention store it (KV-Compress, arXiv 2410.00161)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.partitions import partitions
from kvfw.core.ops.row_order import in_order, over_heads
from kvfw.core.ops.topk import rank
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Observation


class Pages(Part):
    """Keeps whole pages of a paged cache, the same in all heads of a layer.

    A page is ``size`` consecutive tokens of the prompt, counted from its first token, protected ones included. Its
    score is the mean or the maximum, over those of its tokens that may be dropped, of the token's mean score over the
    heads. Pages are taken from the highest score down, ties to the earlier one; what is left of the budget is filled
    with the first tokens of the next page, so at most one page per head is kept in part.

    Paper: Rehg 2024, KV-Compress: Paged KV-Cache Compression with Variable Compression Rates per Attention Head,
    arXiv 2410.00161.

    Deviations: the paper evicts blocks head by head, which needs a block table per head; here all heads of a layer have
    the same pages, as engines store them, and heads with unequal budgets take longer or shorter parts of one order.
    Any scorer's scores are used, and budgets are exact: use multiples of ``size`` for whole pages only.
    """

    size: int = Field(16, ge=1, description="tokens per page")
    score: Literal["mean", "max"] = Field("mean", description="how a page's score comes from its tokens'")

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots."""
        means, width = over_heads(scores, eligible), eligible.shape[-1]
        pages = partitions(obs.state.valid.any(1, keepdim=True), self.size)
        free = pages.cut(eligible.any(1, keepdim=True).float()) > 0
        if self.score == "mean":
            score = pages.cut(means).masked_fill(~free, 0.0).sum(-1) / free.sum(-1).clamp(min=1)
        else:
            score = pages.cut(means).masked_fill(~free, -torch.inf).amax(-1)
        score = score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        order = rank(score, free.any(-1))[..., None] * width + torch.arange(self.size, device=score.device)
        return in_order(pages.joined(order.double(), width), budget, eligible)
