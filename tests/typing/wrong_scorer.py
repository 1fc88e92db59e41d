"""Scorers with one fault each."""

from torch import Tensor

from kvfw import KVState, Needs, Observation, Part, Scorer


class SaysNothing(Part):
    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation):  # E: Function is missing a return type annotation
        return obs.state.positions


class ReturnsAList(Part):
    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return [1.0]  # E: Incompatible return value type (got "list[float]", expected "Tensor")


class SaysList(Part):
    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> list[float]:
        return [1.0]


class TakesTheState(Part):
    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, state: KVState) -> Tensor:
        return state.positions


class WantsMore(Part):
    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation, budget: int) -> Tensor:
        return obs.state.positions * budget


class WithoutNeeds(Part):
    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions


class NeedsIsAMethod(Part):
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions


class LooksInTheWrongPlace(Part):
    @property
    def needs(self) -> Needs:
        return Needs(query=32)  # E: Unexpected keyword argument "query" for "Needs"

    def score(self, obs: Observation) -> Tensor:
        obs.layer = 0  # E: Property "layer" defined in "Observation" is read-only
        return obs.keys  # E: "Observation" has no attribute "keys" # E: Returning Any


list_: Scorer = SaysList()  # E: Incompatible types in assignment # N: score(self, obs: Observation) -> Tensor
state: Scorer = TakesTheState()  # E: Incompatible types in assignment # N: score(self, state: KVState) -> Tensor
more: Scorer = WantsMore()  # E: Incompatible types in assignment # N: score(self, obs: Observation) -> Tensor
none: Scorer = WithoutNeeds()  # E: Incompatible types # N: is missing following "Scorer" protocol member # N: needs
method: Scorer = NeedsIsAMethod()  # E: Incompatible types # N: needs: expected "Needs", got "Callable[[], Needs]"
