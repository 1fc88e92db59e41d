"""CurDKV (Sengupta, Chaudhary, Chakraborty 2025, arXiv 2509.15038)."""

from typing import Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.partitions import partitions
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class CUR(Part):
    """Tokens whose key and value are long beside those of their neighbours.

    In windows of ``window`` tokens, ``a_j = ||k_j||^2 / sum of ||k||^2`` and ``b_j = ||v_j||^2 / sum of ||v||^2``;
    ``s_j = a_j b_j``, or with ``of`` only ``a``, only ``b`` or their mean.

    Paper: Sengupta, Chaudhary, Chakraborty 2025, Value-Guided KV Compression for LLMs via Approximated CUR
    Decomposition, arXiv 2509.15038. The window of 16 is that of kvpress's implementation.

    Deviations: squared norms stand for leverage scores, as they do in the paper, without its random projection, which
    only approximates them. A last window that is not full has its shares scaled to those of a full one; else its
    tokens, which share their sum with fewer, would always win. The compressor keeps sinks, not this score. Shares
    within a head say nothing about other heads, so the scores are not comparable.
    """

    window: int = Field(16, ge=1, description="tokens in a window")
    of: Literal["product", "mean", "key", "value"] = Field("product", description="how the two shares are combined")

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Shares of squared norms within windows, combined."""
        state = obs.state
        runs = partitions(state.valid, self.window)
        full = runs.filled.sum(-1, keepdim=True) / self.window
        squares = (runs.cut(x.float().square().sum(-1)) for x in (state.keys, state.values))
        a, b = (full * x / x.sum(-1, keepdim=True).clamp(min=1e-30) for x in squares)
        combined = {"product": a * b, "mean": (a + b) / 2, "key": a, "value": b}[self.of]
        return runs.joined(combined, state.width)
