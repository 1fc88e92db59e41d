"""H2O, heavy hitters (Zhang et al. 2023, arXiv 2306.14048), without its bias towards early tokens."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class H2O(Part):
    """Attention every key received over the whole prompt, divided by the number of queries that could see it.

    ``c_j = sum over i >= j of A_ij``, mean over the query heads of a KV head; the score is ``c_j / (L - j)``. With
    ``local=n`` attention within the last n positions is left out: ``i - j >= n`` in the sum, ``L - j - n`` queries in
    the division. With ``norm=none`` the score is the plain sum.

    Paper: Zhang et al. 2023, H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models,
    arXiv 2306.14048.

    Deviations: the paper accumulates plain sums (``norm=none``), which favour early keys, because more queries see
    them. The division removes that bias but favours late keys, whose self-attention is divided by few exposures;
    ``local`` leaves that out. Sums are exact, computed in blocks of queries: O(L^2) time, O(block x L) memory.
    """

    comparable: ClassVar[bool] = True

    norm: Literal["exposure", "none"] = Field("exposure", description="divide by the queries that see a key, or not")
    local: int = Field(0, ge=0, description="leave out attention within this many positions")

    @property
    def needs(self) -> Needs:
        """Exact column sums."""
        return Needs(column_sums=frozenset({self.local}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Attention received, per exposure."""
        received = obs.received(self.local)
        if self.norm == "none":
            return received
        length = obs.state.positions.amax(dim=-1, keepdim=True) + 1
        exposures = length - obs.state.positions - self.local
        return torch.where(exposures > 0, received / exposures.clamp(min=1), 0.0)
