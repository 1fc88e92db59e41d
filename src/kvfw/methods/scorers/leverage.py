"""Leverage of keys, from Compactor (Chari and Van Durme 2025, arXiv 2507.08143)."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.leverage import leverages
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import unrotate


class Leverage(Part):
    """How far a key, before RoPE, lies out of what the other keys span.

    With X the keys of the middle minus their mean, ``s_j = x_j^T (X^T X + ridge I)^-1 x_j``, the statistical leverage.

    Paper: Chari and Van Durme 2025, Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage
    Scores, arXiv 2507.08143; the ridge is that of kvpress's implementation, which is by the same author.

    Deviations: the paper approximates X by a random projection to 48 channels; keys have few channels, so the exact
    scores cost no more and are the same in every run. Protected tokens are left out and get 0. A head's scores sum to
    its rank, so they are not comparable over heads.
    """

    ridge: float = Field(0.01, gt=0, description="added to the diagonal of the keys' products")

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Leverage of every slot of the middle, 0 elsewhere."""
        state, inside = obs.state, obs.middle[..., None]
        keys = state.keys.float() if obs.rope is None else unrotate(state.keys, state.positions, obs.rope)
        keys = keys.masked_fill(~inside, 0.0)
        mean = keys.sum(2, keepdim=True) / inside.sum(2, keepdim=True).clamp(min=1)
        return leverages((keys - mean).masked_fill(~inside, 0.0), obs.middle.float(), self.ridge)
