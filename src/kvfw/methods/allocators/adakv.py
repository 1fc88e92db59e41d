"""Ada-KV (Feng et al. 2024, arXiv 2407.11550)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import LayerView, Scorer
from kvfw.core.ops.rounding import by_weight
from kvfw.core.ops.thresholds import counts_above_threshold
from kvfw.core.parts.part import Part, PartOption, Scope
from kvfw.core.parts.spec import Kind


class AdaKV(Part):
    """One ranking over the heads of a layer, on top of a floor that every head gets.

    ``b_h = (1 - floor) #{j : s_hj among the H b highest scores of the layer} + floor b`` for a mean of b slots per
    head, rounded by largest remainder. A head gets at most its own tokens; what exceeds them goes to the others.

    Paper: Feng et al. 2024, Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation, arXiv 2407.11550.

    Deviations: the reference code rounds every head by itself, so that a layer's slots need not add up to its budget;
    here they do. ``normalise=share`` divides a head's scores by the sum of its b highest, an option of the reference
    code; ``normalise=zscore`` by their mean and deviation, for scores without a common unit.
    """

    scope: ClassVar[Scope] = "layer"

    floor: float = Field(0.2, ge=0, le=1, description="part of an equal share that every head gets")
    normalise: Literal["none", "share", "zscore"] = Field("none", description="make scores of heads comparable")
    by: Annotated[Scorer | None, SkipValidation, PartOption(Kind.SCORER, "none")] = Field(
        None, description="ranks the tokens, in place of the first stage's scorer"
    )

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per head, layer by layer."""
        (layer,) = layers
        scores, each = layer.scores(), total // layer.kv_heads
        counts = counts_above_threshold(self._normalised(scores, each), total).to(torch.float64)
        floor = (self.floor * total.to(torch.float64) / layer.kv_heads)[:, None].expand_as(counts)
        return [by_weight(counts, total, (scores > -torch.inf).sum(-1), floor)]

    def _normalised(self, scores: Float[Tensor, "B Hkv N"], each: Int64[Tensor, " B"]) -> Float[Tensor, "B Hkv N"]:
        inside = scores > -torch.inf
        if self.normalise == "share":
            ranked = scores.masked_fill(~inside, 0.0).sort(dim=-1, descending=True).values.cumsum(-1)
            top = ranked.gather(-1, (each - 1).clamp(min=0)[:, None, None].expand(-1, scores.shape[1], 1))
            return scores / top.clamp(min=torch.finfo(scores.dtype).tiny)
        if self.normalise == "zscore":
            count, known = inside.sum(-1, keepdim=True).clamp(min=1), scores.masked_fill(~inside, 0.0)
            away = (known - known.sum(-1, keepdim=True) / count).masked_fill(~inside, 0.0)
            return (away / (away.square().sum(-1, keepdim=True) / count).sqrt().clamp(min=1e-12)).where(inside, scores)
        return scores
