"""Retrieval heads and streaming heads (DuoAttention: Xiao et al. 2024, arXiv 2410.10819)."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float32, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.calibration import CalibratedPart, Piece
from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.layer_shares import per_head
from kvfw.core.ops.rounding import rounded
from kvfw.core.parts.part import Scope
from kvfw.core.state.observation import Columns, Needs, Observation


class Duo(CalibratedPart):
    """Heads that look far keep everything, the others sinks and recent tokens alone.

    KV heads are taken in the order of ``r``, largest first; each gets its whole middle while the total lasts. ``r`` is
    the attention of a head's queries to tokens at least ``local`` positions back, without the first ``sinks``, mean
    over the queries and the head's group: of the prompt, or with ``file`` of a text.

    Paper: Xiao et al. 2024, DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads,
    arXiv 2410.10819.

    Deviations: the paper learns by gradient how much each head needs the whole cache; ``r`` is measured. Its share of
    retrieval heads is fixed; here the budget decides it, and the last of them keeps a part of its middle. For a
    pattern learned elsewhere use ``table``.
    """

    ranks: ClassVar[bool] = False

    local: int = Field(128, ge=1, description="distance from which attention counts as far")
    sinks: int = Field(4, ge=0, description="first tokens to which attention does not count")

    @property
    def scope(self) -> Scope:
        """All layers are compared; with a file none is looked at."""
        return "model" if self.file is None else "shape"

    @property
    def needs(self) -> Needs:
        """Attention received from afar; nothing with a file."""
        return Needs() if self.file is not None else self.calibration_needs

    @property
    def calibration_needs(self) -> Needs:
        """Attention received from afar."""
        return Needs(columns=frozenset({Columns(self.local)}))

    def calibrate(self, pieces: Iterable[Piece]) -> dict[str, Tensor]:
        """``r`` of every head, mean over the pieces."""
        found: dict[str, list[Tensor]] = {}
        for piece in pieces:
            for layer, obs in piece.items():
                found.setdefault(f"{layer}.far", []).append(self.far(obs)[0])
        return {name: torch.stack(each).mean(0) for name, each in found.items()}

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """Whole middles, the head that looks farthest first; heads of equal ``r`` share."""
        learned = [self.learned("far", layer.index, total.device) for layer in layers]
        pairs = zip(learned, layers, strict=True)
        far = torch.cat([self.far(view.seen()) if r is None else r.expand(len(total), -1) for r, view in pairs], 1).to(
            total.device
        )
        most = per_head(layers, total.device)
        order = far.argsort(dim=1, descending=True, stable=True)
        wanted = most.gather(1, order)
        given = (total[:, None] - (wanted.cumsum(1) - wanted)).clamp(min=0).minimum(wanted)
        first = torch.zeros_like(most).scatter_(1, order, given).to(torch.float64)
        # Heads that look equally far share what these got together.
        alike = (far[:, :, None] == far[:, None]).to(first)
        part = (alike @ first[..., None] / (alike @ most.to(first)[..., None]).clamp(min=1)).squeeze(-1)
        return list(torch.split(rounded(part * most, total, most), [layer.kv_heads for layer in layers], 1))

    def far(self, obs: Observation) -> Float32[Tensor, "B Hkv"]:
        """``r``."""
        valid = obs.state.valid
        counted = valid & (valid.to(torch.int64).cumsum(-1) > self.sinks)
        received = obs.column(Columns(self.local)).masked_fill(~counted, 0.0)
        return received.sum(-1) / valid.sum(-1).clamp(min=1)
