"""The selection of CriticalKV (Feng et al. 2025, arXiv 2502.03805)."""

from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.projection import projected_norms
from kvfw.core.ops.topk import highest
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class Critical(Part):
    """Part of the budget by score alone, the rest by score times the size of what the value adds to the residual.

    Of K slots, stage 1 takes the ``floor(share K)`` of highest score s, stage 2 the rest of highest
    ``(s_j + epsilon) c_j``, with ``c_j`` the mean over a KV head's query heads h of ``||W_o^h v_j||``. Ties go to the
    lowest position. Scores should hold no norm of the values yet; where the least of a head is negative, it is
    subtracted first.

    Paper: Feng et al. 2025, Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective,
    arXiv 2502.03805.

    Deviations: the norm is L2 by default, in O(N Dv^2) per query head; the paper's L1 (``norm=l1``) costs O(N Dv out)
    and is reported to do alike.
    """

    share: float = Field(0.5, ge=0, le=1, description="part of the budget that goes by score alone")
    epsilon: float = Field(1e-4, ge=0, description="added to the scores in the second stage")
    norm: Literal["l2", "l1"] = Field("l2", description="norm of a value after the output projection")

    @property
    def needs(self) -> Needs:
        """The output projection."""
        return Needs(projection=True)

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots of both stages."""
        share = Fraction(str(self.share))
        first = highest(scores, budget * share.numerator // share.denominator, eligible)
        values = obs.state.values.masked_fill(~obs.state.valid[..., None], 0.0)
        effect = projected_norms(values, obs.projection(), self.norm).mean(2)
        # An infinite score of a value without effect is no number.
        least = scores.float().masked_fill(~eligible, 0.0).amin(-1, keepdim=True).clamp(max=0.0)
        critical = ((scores.float() - least + self.epsilon) * effect).nan_to_num(nan=-torch.inf, posinf=torch.inf)
        return first | highest(critical, budget - first.sum(-1), eligible & ~first)
