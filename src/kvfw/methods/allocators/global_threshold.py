"""One threshold over all layers and heads (KVzip: Kim et al. 2025, arXiv 2505.23416)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from jaxtyping import Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import LayerView, Scorer
from kvfw.core.ops.thresholds import counts_above_threshold
from kvfw.core.parts.part import Part, PartOption, Scope
from kvfw.core.parts.spec import Kind


class GlobalThreshold(Part):
    """The tokens of highest score over all layers and heads: a head gets as many slots as it holds of them.

    ``b_lh = #{j : s_lhj among the total highest scores of all layers and heads}``, ties to the lower layer, head and
    position.

    Source: the head-and-layer budgets of KVzip, Kim et al. 2025, arXiv 2505.23416. Scores must mean the same in every
    head, so the scorer has to be comparable.
    """

    scope: ClassVar[Scope] = "model"

    by: Annotated[Scorer | None, SkipValidation, PartOption(Kind.SCORER, "none")] = Field(
        None, description="ranks the tokens, in place of the first stage's scorer"
    )

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        scores = [layer.scores() for layer in layers]
        width = max(each.shape[-1] for each in scores)
        home = total.device
        rows = [torch.nn.functional.pad(s, (width - s.shape[-1], 0), value=-torch.inf).to(home) for s in scores]
        counts = counts_above_threshold(torch.cat(rows, 1), total)
        return list(torch.split(counts, [layer.kv_heads for layer in layers], dim=1))
