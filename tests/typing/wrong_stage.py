"""Stages with one fault each."""

from collections.abc import Callable

from torch import Tensor

from kvfw import KVState, Needs, Observation, Outcome, Rope, Scorer, Stage, StageForm, take


class Unfinished(StageForm):
    needs = Needs()
    moves_positions = False

    def run(self, obs: Observation, score_of: Callable[[Scorer], Tensor], budget: Tensor, eligible: Tensor) -> Outcome:
        return Outcome(kept=take(obs.state, eligible))  # E: incompatible type "KVState"; expected "Tensor"


class ReturnsAMask(StageForm):
    needs = Needs()
    moves_positions = False

    def run(self, obs: Observation, score_of: Callable[[Scorer], Tensor], budget: Tensor, eligible: Tensor) -> Tensor:
        return eligible

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return state


unfinished: Stage = Unfinished()  # E: Incompatible types # N: is missing following "Stage" protocol member # N: finish
mask: Stage = ReturnsAMask()  # E: Incompatible types # N: eligible: Tensor) -> Outcome # N: eligible: Tensor) -> Tensor
