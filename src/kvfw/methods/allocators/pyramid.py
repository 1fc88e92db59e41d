"""PyramidKV's budgets (Cai et al. 2024, arXiv 2406.02069)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.rounding import rounded
from kvfw.core.parts.part import Part, Scope


class Pyramid(Part):
    """Slots that fall linearly from the lowest layer to the highest; the heads of a layer get the same number.

    For a mean of b slots per head and L layers: ``least = b / beta, most = 2 b - least`` (most at most the middle, then
    ``least = 2 b - most``), and layer l gets ``most - l (most - least) / (L - 1)``, rounded by largest remainder.

    Paper: Cai et al. 2024, PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling, arXiv
    2406.02069.

    Deviations: b counts the slots of the middle only, without sinks and recent tokens, which every layer has besides;
    reference code divides integers and misses the total, here it is met.
    """

    scope: ClassVar[Scope] = "shape"

    beta: float = Field(20, ge=1, description="mean slots over the highest layer's")

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        heads = torch.tensor([layer.kv_heads for layer in layers], device=total.device)
        middle = torch.stack([layer.middle for layer in layers], 1)
        mean = total.to(torch.float64)[:, None] / heads.sum()
        most = (2 * mean - mean / self.beta).minimum(middle.amin(1, keepdim=True).to(torch.float64))
        least = 2 * mean - most
        place = torch.linspace(0, 1, len(layers), dtype=torch.float64, device=total.device)
        slope = most - place * (most - least) if len(layers) > 1 else mean
        # Layers with more heads weigh more in the mean.
        amounts = (slope * (mean * heads.sum() / (slope * heads).sum(1, keepdim=True))).minimum(
            middle.to(torch.float64)
        )
        spread = amounts.repeat_interleave(heads, 1)
        found = rounded(spread, total, middle.repeat_interleave(heads, 1))
        return list(torch.split(found, heads.tolist(), 1))
