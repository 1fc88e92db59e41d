"""Selectors with one fault each."""

from torch import Tensor

from kvfw import Observation, Part, Selector


class Forgets(Part):
    def select(self, scores: Tensor, budget: Tensor) -> Tensor:
        return scores > budget[..., None]


class ReturnsIndices(Part):
    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> list[int]:
        return [0]


class Chooses(Part):
    def choose(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible


forgets: Selector = Forgets()  # E: Incompatible types # N: eligible: Tensor, obs: Observation) -> Tensor
indices: Selector = ReturnsIndices()  # E: Incompatible types # N: eligible: Tensor, obs: Observation) -> list[int]
chooses: Selector = Chooses()  # E: expression has type "Chooses", variable has type "Selector"
