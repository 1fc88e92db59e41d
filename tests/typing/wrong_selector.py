"""Selectors with one fault each."""

from torch import Tensor

from kvfw import Part, Selector


class ForgetsWhoIsEligible(Part):
    def select(self, scores: Tensor, budget: Tensor) -> Tensor:
        return scores > budget[..., None]


class ReturnsIndices(Part):
    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor) -> list[int]:
        return [0]


class Chooses(Part):
    def choose(self, scores: Tensor, budget: Tensor, eligible: Tensor) -> Tensor:
        return eligible


forgets: Selector = ForgetsWhoIsEligible()  # E: Incompatible types # N: budget: Tensor, eligible: Tensor) -> Tensor
indices: Selector = ReturnsIndices()  # E: Incompatible types # N: eligible: Tensor) -> list[int]
chooses: Selector = Chooses()  # E: expression has type "Chooses", variable has type "Selector"
