"""MorphKV (Ghadia et al. 2025, arXiv 2503.00979)."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.rows import joint_rows
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class MorphKV(Part):
    """Tokens that any of the last queries looks at: ``s_j = max over the last w queries i of A_ij``.

    ``A_i = softmax_j(sum over a KV head's query heads of s q_i.k_j)``: the heads of a group look as one. With
    ``fuse=sum`` the maximum is a sum.

    Paper: Ghadia et al. 2025, Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs, arXiv
    2503.00979; window and maximum are those of its code's example.

    Deviations: the paper evicts a token at every step of an answer; that is ``compress_every=1`` with ``recent`` set to
    the window. Tokens after the middle take no part in the softmax.
    """

    comparable: ClassVar[bool] = True

    window: int = Field(200, ge=1, description="number of last queries; clipped to the prompt's length")
    fuse: Literal["max", "sum"] = Field("max", description="over the window's queries")

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Largest, or summed, joint attention."""
        heads = [rows.amax(1) if self.fuse == "max" else rows.sum(1) for rows in joint_rows(obs, "sum")]
        return torch.stack(heads, 1)
