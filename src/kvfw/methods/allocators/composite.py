"""Layer budgets from composite tokens (KVCompose: Akulov et al. 2025, arXiv 2509.05165)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float64, Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import LayerView, Scorer
from kvfw.core.ops.layer_shares import handed_out
from kvfw.core.parts.part import Part, PartOption, Scope
from kvfw.core.parts.spec import Kind


class Composite(Part):
    """One ranking of the composite tokens of all layers; the heads of a layer get the same number of slots.

    The r-th composite token of a layer consists of every head's r-th best token, and its score is the mean of theirs.
    The highest composite tokens over all layers stay, ties to the lower rank, then layer; what is less than one slot
    per head goes to the next layer's first heads.

    Paper: Akulov et al. 2025, KVCompose: Efficient Structured KV Cache Compression with Composite Tokens, arXiv
    2509.05165. With the scorer ``kvcompose`` it is the paper's method: ``kvcompose@composite``.

    Deviations: the reference code gives the first layer as much as the largest, because transformers reads a cache's
    length there; nothing depends on that here.
    """

    scope: ClassVar[Scope] = "model"

    by: Annotated[Scorer | None, SkipValidation, PartOption(Kind.SCORER, "none")] = Field(
        None, description="ranks the tokens, in place of the first stage's scorer"
    )

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        width = max(layer.seen().state.width for layer in layers)
        return handed_out(torch.stack([_ranked(each, width).to(total.device) for each in layers], -1), total, layers)


def _ranked(layer: LayerView, width: int) -> Float64[Tensor, "B width"]:
    """The composite tokens' scores, negative, so that the best comes first; infinity beyond the middle."""
    scores = layer.scores().to(torch.float64)
    best = scores.sort(dim=-1, descending=True).values.clamp(min=torch.finfo(torch.float32).min).mean(1)
    beyond = torch.arange(width, device=best.device) >= layer.middle.to(best.device)[:, None]
    return torch.nn.functional.pad(-best, (0, width - best.shape[-1])).masked_fill(beyond, torch.inf)
