"""Scorers, with options and with another scorer inside."""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw import Kind, Needs, Observation, Part, PartOption, Scorer


class Loud(Part):
    """``score_j = ||v_j||``."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        norms: Tensor = torch.linalg.vector_norm(obs.state.values.float(), dim=-1)
        return norms


class Louder(Part):
    """Another scorer's scores, raised by loudness."""

    strength: float = Field(default=1.0, ge=0, description="how much loudness counts")
    other: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv")]

    @property
    def needs(self) -> Needs:
        return self.other.needs | Needs(queries=8, column_sums=frozenset({0}), lexical=True)

    def score(self, obs: Observation) -> Tensor:
        queries, positions = obs.window()
        loud = Loud().score(obs) + queries.sum() + positions.sum() + obs.received(0) + obs.rarity()[:, None]
        return (1 + self.strength * loud) * obs.score(self.other)


class NotAPart:
    """Any object with the two methods is a scorer."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions


loud: Scorer = Loud()
louder: Scorer = Louder(other=loud)
plain: Scorer = NotAPart()
