"""SimLayerKV: lazy layers (Zhang et al. 2024, arXiv 2410.13846)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float64, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import per_head
from kvfw.core.ops.rounding import by_weight
from kvfw.core.ops.rows import window_rows
from kvfw.core.parts.part import Part, Scope
from kvfw.core.state.observation import Needs, Observation, protect


class SimLayer(Part):
    """Layers that look at little but the first and last tokens get no slots for others; the rest share what is left.

    A layer is lazy if the mean attention of its last ``window`` queries to the prompt's first ``first`` and last
    ``recent`` tokens exceeds ``threshold``, mean over query heads. A head of a lazy layer gets as many slots as the
    middle has of these tokens, at most its equal share b of the total; the compressor's own sinks and recent tokens are
    kept besides, so that with ``recent`` up to theirs a lazy layer gets no slot. The other layers divide what is left
    of the total equally, each at most its whole middle.

    So budgets sum to less than the total where lazy layers leave more than the others can use, and the ratio reached is
    an outcome: with a total near the whole middle it is the paper's rule, which cuts lazy layers only.

    Paper: Zhang et al. 2024, SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction, arXiv 2410.13846.

    Deviations: the paper keeps the other layers whole, and has no total; here a total holds. Which tokens fill a lazy
    layer's slots is the stages' choice: ``streaming`` takes the last ones, which are the paper's. The paper's
    thresholds: Llama-2 0.65, Mistral 0.8, Qwen 0.85, Llama-3 0.9.
    """

    scope: ClassVar[Scope] = "model"
    ranks: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    threshold: float = Field(0.9, ge=0, le=1, description="attention to first and last tokens that makes a layer lazy")
    first: int = Field(4, ge=0, description="number of first tokens")
    recent: int = Field(1024, ge=0, description="number of last tokens")
    window: int = Field(1, ge=1, description="number of last queries; clipped to the prompt's length")

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        device, count = total.device, sum(layer.kv_heads for layer in layers)
        most, each = per_head(layers, device), (total // count)[:, None]
        lazy = [self._is_lazy(layer.seen()).to(device)[:, None].expand(-1, layer.kv_heads) for layer in layers]
        near = [(self._near(layer.seen()) & layer.seen().middle).sum(-1).to(device) for layer in layers]
        lazy_heads, kept = torch.cat(lazy, 1), torch.cat(near, 1).minimum(each).minimum(most)
        given = kept.where(lazy_heads, 0)
        # A weight of 0 could still get what nobody else can use; without room it cannot.
        room = most.masked_fill(lazy_heads, 0)
        left = (total - given.sum(1)).minimum(room.sum(1))
        shares = by_weight(torch.ones_like(room, dtype=torch.float64), left, room)
        return list(torch.split(given + shares, [layer.kv_heads for layer in layers], 1))

    def _near(self, obs: Observation) -> Bool[Tensor, "B Hkv N"]:
        """The first and last tokens."""
        return protect(obs.state.valid, self.first, self.recent) & obs.state.valid

    def _is_lazy(self, obs: Observation) -> Bool[Tensor, " B"]:
        near = self._near(obs)
        _, positions = obs.window()
        attention: Float64[Tensor, " B"] = torch.zeros(len(near), dtype=torch.float64, device=near.device)
        heads = 0
        for head, rows in enumerate(window_rows(obs)):
            attention = attention + rows.masked_fill(~near[:, head, None, None], 0.0).sum(
                (1, 2, 3), dtype=torch.float64
            )
            heads += rows.shape[1]
        # All of a row's attention may add up to a little more than 1.
        return attention / (heads * (positions >= 0).sum(1)) > self.threshold + 1e-6
