"""A stage, made of slots taken out of a state and put together again."""

from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw import KVState, Needs, Observation, Outcome, Rope, Scorer, Stage, StageForm, chosen_slots, gather, join, take


class Halves(StageForm):
    consumes_rest: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def moves_positions(self) -> bool:
        return False

    def run(
        self,
        obs: Observation,
        score_of: Callable[[Scorer], Float[Tensor, "B Hkv N"]],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
    ) -> Outcome:
        first = take(obs.state, eligible)
        second = gather(obs.state, chosen_slots(eligible, first.width))
        return Outcome(kept=~eligible, merged=join(first, second))

    def finish(self, state: KVState, rope: Rope | None, active: Bool[Tensor, "B Hkv"]) -> KVState:
        return state


halves: Stage = Halves()
