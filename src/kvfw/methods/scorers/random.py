"""Random scores, the baseline of all scorers."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class Random(Part):
    """``s_j`` uniform in [0, 1): every token is as likely to stay as any other.

    A score depends on the seed, the layer, the KV head and the token's position, on nothing else: the same prompt keeps
    the same tokens, padded or not, and tokens keep their scores through later compressions, which makes what is kept a
    uniform sample of all tokens read so far.

    Source: the usual baseline; kvpress has it as RandomPress.

    Deviations: kvpress draws the same numbers in every layer if it is seeded, and new ones every time if it is not.
    """

    comparable: ClassVar[bool] = True

    seed: int = Field(0, ge=0, lt=2**31, description="another seed, other tokens")

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Uniform numbers, the same on every device."""
        at = obs.state.positions.clamp(min=0).long()
        generator = torch.Generator().manual_seed((self.seed << 16) + obs.layer)
        # Drawn position by position, so that longer prompts begin with the same numbers.
        drawn = torch.rand(int(at.max()) + 1, at.shape[1], generator=generator)
        return drawn.T.to(at.device).expand(at.shape[0], -1, -1).gather(2, at)
