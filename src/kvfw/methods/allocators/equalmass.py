"""Equal retained mass in every layer (PrefixKV: Wang et al. 2024, arXiv 2412.03409)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float64, Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import LayerView, Scorer
from kvfw.core.ops.layer_shares import handed_out
from kvfw.core.parts.part import Part, PartOption, Scope
from kvfw.core.parts.spec import Kind


class EqualMass(Part):
    """The same part of its scores' sum kept in every layer; the heads of a layer get the same number.

    ``M_l(b)`` is the part of layer l's total score that its b highest tokens hold, scores being averaged over heads.
    One threshold t holds for all layers: layer l gets the least b with ``M_l(b) >= t``, and t is as high as the total
    allows. Where no t meets the total, the slots left over go, one per head, to the layers whose ``M_l(b)`` is t, those
    with fewer slots first, then lower ones; less than one slot per head goes to the next layer's first heads.

    Paper: Wang et al. 2024, PrefixKV: Adaptive Prefix KV Cache is What Vision Instruction-Following Models Need for
    Efficient Generation, arXiv 2412.03409.

    Deviations: the paper averages the layers' ratios over samples beforehand and searches t until totals agree within 5
    slots; here every prompt has its own, and totals are exact. Only the middle's scores count, since sinks and recent
    tokens are kept in any case. The paper's heads keep the same tokens; where each chooses its own, ``heads=each``
    measures what they then hold: the mean over heads of the part that a head's b highest tokens hold.
    """

    scope: ClassVar[Scope] = "model"

    heads: Literal["mean", "each"] = Field("mean", description="average scores over heads, or what each head keeps")
    by: Annotated[Scorer | None, SkipValidation, PartOption(Kind.SCORER, "none")] = Field(
        None, description="ranks the tokens, in place of the first stage's scorer"
    )

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head: the slots are handed out in the order of the mass held without them."""
        width = max(layer.seen().state.width for layer in layers)
        held = torch.stack([self._held_before(layer, width).to(total.device) for layer in layers], -1)
        return handed_out(held, total, layers)

    def _held_before(self, layer: LayerView, width: int) -> Float64[Tensor, "B width"]:
        """``M(0), M(1), ...`` in billionths: the part held before each further slot; infinity beyond the middle."""
        scores = layer.scores().to(torch.float64)
        inside = scores > -torch.inf
        mass = scores.clamp(min=0).masked_fill(~inside, 0.0)
        if self.heads == "mean":
            mass, inside = mass.mean(1, keepdim=True), inside.any(1, keepdim=True)
        # Without any score above 0 all tokens of the middle are alike.
        mass = torch.where(mass.sum(-1, keepdim=True) > 0, mass, inside.to(torch.float64))
        ranked = mass.sort(dim=-1, descending=True).values
        ranked = (ranked / ranked.sum(-1, keepdim=True).clamp(min=1e-300)).mean(1)
        before = torch.nn.functional.pad(ranked, (1, width - ranked.shape[-1])).cumsum(-1)[:, :width]
        # Parts that differ by rounding alone are equal.
        before = (before * 1e9).round()
        beyond = torch.arange(width, device=before.device) >= layer.middle.to(before.device)[:, None]
        return before.masked_fill(beyond, torch.inf)
