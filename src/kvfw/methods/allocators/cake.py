"""CAKE's layer budgets (Qin et al. 2025, arXiv 2503.12491)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float64, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import shared_out
from kvfw.core.ops.rows import column_variances, row_entropies, window_rows
from kvfw.core.parts.part import Part, Scope
from kvfw.core.state.observation import Needs, Observation


class Cake(Part):
    """More slots for layers whose attention is spread wide, and shifts from query to query.

    ``P_l = H_l^(1/tau1) V_l^(1/tau2)``, from the attention of the last ``window`` queries to the tokens before them:
    ``H`` is the entropy summed over queries and query heads, ``V`` the variance over the queries summed over tokens and
    query heads. Layer l gets the share ``P_l / sum P`` of the slots, the same number in each of its heads; what exceeds
    its middle is divided among the others by the same rule.

    Paper: Qin et al. 2025, CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences, arXiv 2503.12491.

    Deviations: the paper cuts layers while the prompt is read, so that memory never exceeds its final size; here they
    are cut when it is over, to the same budgets. Reference code hands the excess out equally. ``tau1`` and ``tau2`` are
    tuned per model and budget in the paper; 1 is the value of models without an entry.
    """

    scope: ClassVar[Scope] = "model"
    ranks: ClassVar[bool] = False

    window: int = Field(32, ge=2, description="number of last queries; clipped to the prompt's length")
    tau1: float = Field(1, gt=0, description="the higher, the less the entropy counts")
    tau2: float = Field(1, gt=0, description="the higher, the less the variance counts")

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Slots per layer and head."""
        logs = torch.stack([self._log_preference(layer.seen()).to(total.device) for layer in layers], 1)
        # Powers of small numbers leave the range of float64; shares do not depend on a common factor.
        highest = logs.amax(1, keepdim=True)
        weights = (logs - highest.masked_fill(highest == -torch.inf, 0.0)).exp()
        heads = torch.tensor([layer.kv_heads for layer in layers], device=total.device)
        return shared_out(weights / heads, total, layers)

    def _log_preference(self, obs: Observation) -> Float64[Tensor, " B"]:
        """``ln H / tau1 + ln V / tau2``."""
        _, positions = obs.window()
        real = positions >= 0
        first = positions.masked_fill(~real, torch.inf).amin(1)
        entropy = variance = torch.zeros(len(positions), dtype=torch.float64, device=positions.device)
        for head, rows in enumerate(window_rows(obs)):
            outside = (obs.state.positions[:, head] < first[:, None])[:, None, None]
            seen = rows.masked_fill(~outside, 0.0)
            entropy = entropy + row_entropies(seen).sum((1, 2))
            variance = variance + column_variances(seen, real).sum((1, 2))
        return entropy.clamp(min=0).log() / self.tau1 + variance.log() / self.tau2
