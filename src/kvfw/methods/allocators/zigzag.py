"""ZigZagKV's layer budgets (Zhong et al. 2024, arXiv 2412.09036)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float64, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import shared_out
from kvfw.core.ops.rows import window_rows
from kvfw.core.parts.part import Part, Scope
from kvfw.core.state.observation import Needs, Observation


class ZigZag(Part):
    """More slots for layers that need more tokens to hold most of their attention.

    ``LMBA_l`` is the least number of tokens that hold the fraction ``mass`` of a query head's attention from the last
    ``window`` queries, averaged over query heads. With b the mean slots per head, every head gets ``minimum b``, and
    the rest is divided in proportion to LMBA: ``b_l = minimum b + (1 - minimum) b L LMBA_l / sum LMBA`` for L layers.

    Paper: Zhong et al. 2024, ZigZagKV: Dynamic KV Cache Compression for Long-context Modeling based on Layer
    Uncertainty, arXiv 2412.09036.

    Deviations: attention is that of the window's mean, to all tokens, sinks and recent ones included, while the slots
    given out are the middle's. The defaults of ``mass`` and ``minimum`` are those of an implementation proposed for
    kvpress, not checked against the paper.
    """

    scope: ClassVar[Scope] = "model"
    ranks: ClassVar[bool] = False

    mass: float = Field(0.9, gt=0, le=1, description="fraction of the attention to be held")
    minimum: float = Field(0.2, ge=0, le=1, description="part of an equal share that every head gets")
    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        needed = torch.stack([self._tokens_needed(layer.seen()).to(total.device) for layer in layers], 1)
        mean = total.to(torch.float64) / sum(layer.kv_heads for layer in layers)
        return shared_out(needed, total, layers, (self.minimum * mean)[:, None].expand_as(needed))

    def _tokens_needed(self, obs: Observation) -> Float64[Tensor, " B"]:
        """LMBA of one layer."""
        counts = []
        for rows in window_rows(obs):
            held = rows.sum(2, dtype=torch.float64).sort(dim=-1, descending=True).values.cumsum(-1)
            # Sums of the same attention in another order differ by rounding.
            short = held < (self.mass - 1e-6) * held[..., -1:]
            counts.append(short.sum(-1).to(torch.float64) + 1)
        return torch.cat(counts, 1).mean(1)
