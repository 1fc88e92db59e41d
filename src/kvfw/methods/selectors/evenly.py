"""Evenly spaced selection."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.topk import rank
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Observation


class Evenly(Part):
    """Keeps ``K`` of ``M`` eligible tokens evenly spaced in the order of their scores.

    Ranks ``floor(j (M - 1) / (K - 1))`` for j = 0 ... K-1, counted from the lowest score; for K = 1 the middle one,
    ``floor((M - 1) / 2)``. With the ``position`` scorer the tokens are evenly spaced over the prompt.

    Source: the founding experiment's "naive drop", which uses the ``position`` scorer; other scorers are kvfw's own
    extension.
    """

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots."""
        ascending = rank(-scores, eligible)
        last = eligible.sum(-1, keepdim=True) - 1
        # Rank r is chosen if floor(j * last / (K - 1)) = r for some j: if j = ceil(r (K - 1) / last) maps back to r.
        steps = (budget[..., None] - 1).clamp(min=1)
        span = last.clamp(min=1)
        j = (ascending * steps + span - 1) // span
        chosen = (j * span // steps == ascending) & (j <= steps)
        alone = ascending == last.clamp(min=0) // 2
        return torch.where(budget[..., None] == 1, alone, chosen & (budget[..., None] > 1)) & eligible
