"""Pinned: lexical rarity times attention."""

from typing import Annotated

from jaxtyping import Float
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Part, PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation


class Pinned(Part):
    """Attention, raised for tokens that look like codes, numbers or acronyms.

    ``(1 + strength r_i) a_i`` with ``a`` the scores of ``attention`` and ``r_i = 1`` for tokens that overlap a match of
    ``[A-Z0-9]{2,}|\\d`` in the prompt's text, else 0.

    Source: the founding experiment; there is no paper. It rewards what a needle test asks for, so its recall there
    says little about other tasks.

    Deviations: none known. Rarity is computed from tokens, so under ``kvfw.attach`` it needs ``tokenizer=``.
    """

    strength: float = Field(10.0, ge=0, description="how much a rare token's attention is raised")
    attention: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv"), Field(description="its scores are raised")
    ]

    @property
    def needs(self) -> Needs:
        """What the attention scorer needs, and lexical features."""
        return self.attention.needs | Needs(lexical=True)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Raised attention."""
        rare = obs.rarity()[:, None]
        return (1 + self.strength * rare) * obs.score(self.attention)
