"""Merging neighbours."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw import HeadTokens, KVState, Part, merge_clusters


class Segments(Part):
    """Cuts the tokens of each head into ``K`` contiguous runs; every run becomes its weighted mean.

    Of ``n`` tokens, counted from 0, run ``k`` begins with token ``ceil(k n / K)`` (``cut=even``), or with the first
    token before which ``k / K`` of the head's weight lies (``cut=weight``): heavy stretches get short runs. A cut that
    would leave a run empty moves to the nearest place where it does not.
    """

    cut: Literal["even", "weight"] = Field("even", description="runs of equal length, or of equal weight")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.Merger`."""
        return merge_clusters(state, weights, budget, self.runs)

    def runs(self, tokens: HeadTokens, count: int) -> Int64[Tensor, " n"]:
        """The run each token is in, ascending."""
        n, k = len(tokens.weights), torch.arange(1, count, device=tokens.weights.device)
        cuts = -(-k * n // count)
        total = tokens.weights.sum()
        if self.cut == "weight" and total > 0:
            before = tokens.weights.cumsum(0) - tokens.weights
            cuts = torch.searchsorted(before, k * (total / count))
        # Cut k leaves room for k tokens before it, and for a token of every later run from it on.
        cuts = (cuts - k).cummax(0).values.clamp(0, n - count) + k
        begins = torch.zeros(n, dtype=torch.int64, device=k.device)
        begins[cuts] = 1
        return begins.cumsum(0)
