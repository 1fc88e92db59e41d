"""PyramidKV's budgets (Cai et al. 2024, arXiv 2406.02069)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import per_head, shared_out
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
        mean = total.to(torch.float64)[:, None] / sum(layer.kv_heads for layer in layers)
        middle = per_head(layers, total.device).amin(1, keepdim=True)
        most = (2 * mean - mean / self.beta).minimum(middle.to(torch.float64))
        least = 2 * mean - most
        place = torch.linspace(0, 1, len(layers), dtype=torch.float64, device=total.device)
        slope = most - place * (most - least) if len(layers) > 1 else mean
        # Layers with more heads weigh more in the mean, so the line is met only up to a factor there.
        return shared_out(slope, total, layers)
