"""Stage forms of a stranger, each broken in one way."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import SkipValidation
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.compress.stages import Outcome, ScoreOf
from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.verify.instruments.observed import KEY_DIM


class Losing(sound.Keep):
    """Drops the last slot of the finished cache."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return KVState(*(x[:, :, :-1] for x in (state.keys, state.values, state.positions, state.mass, state.bias)))


class Scaling(sound.Keep):
    """Makes all values a little larger."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, values=state.values * 1.05)


class Sinkless(sound.Keep):
    """Overwrites the first slot with the last."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        first = state.valid & (state.positions == 0)
        return replace(state, values=torch.where(first[..., None], state.values[:, :, -1:], state.values))


class Shuffling(sound.Keep):
    """Swaps the last two slots."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        order = [*range(state.width - 2), state.width - 1, state.width - 2]
        parts = (state.keys, state.values, state.positions, state.mass, state.bias)
        return KVState(*(x[:, :, order] for x in parts))


class Discounting(sound.Fuse):
    """Merged slots count half."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, mass=torch.where(state.mass > 2, state.mass / 2, state.mass))


class Disguised(sound.Fuse):
    """Calls merged slots exact tokens."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, mass=state.mass.clamp(max=1))


class Infinite(sound.Fuse):
    """Takes the logarithm of 0."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, bias=torch.where(state.valid, (state.mass - 1).log(), state.bias))


class Widening(sound.Keep):
    """Stores the cache in float32."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, keys=state.keys.float(), values=state.values.float())


class Envious(sound.Keep):
    """Ranks by attention that was captured for others."""

    def run(self, obs: Observation, score_of: ScoreOf, budget: Tensor, eligible: Tensor) -> Outcome:
        scores = obs.column_sums.get(0, obs.state.positions)
        return Outcome(kept=self.selector.select(scores, budget, eligible, obs))


class Unnarrowing(sound.Keep):
    """Asks its scorer behind kvfw's back."""

    def run(self, obs: Observation, score_of: ScoreOf, budget: Tensor, eligible: Tensor) -> Outcome:
        return Outcome(kept=self.selector.select(self.scorer.score(obs), budget, eligible, obs))


class Resetting(sound.Keep):
    """Sets all biases back to 0."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, bias=state.bias.masked_fill(state.valid, 0.0))


class Overfull(sound.Fuse):
    """Keeps the tokens it merges as well, up to its budget."""

    def run(self, obs: Observation, score_of: ScoreOf, budget: Tensor, eligible: Tensor) -> Outcome:
        outcome = super().run(obs, score_of, budget, eligible)
        return replace(outcome, kept=eligible & (eligible.cumsum(-1) <= budget[..., None]))


CALLS: list[int] = []


class Tiring(sound.Keep):
    """Gives smaller values with every call."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        CALLS.append(1)
        return replace(state, values=state.values * 0.9 ** len(CALLS))


class Probing(sound.Keep):
    """Probes the model, and draws a random number once it has."""

    scorer: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "kvzip")]

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        torch.rand(1)
        return state


class Retouching(Probing):
    """Probes the model, and changes the values once it has."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return replace(state, values=state.values * 1.001)


class Jealous(sound.Keep):
    """Leaves its mark on caches that others have slots in."""

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        crowded = state.width > 20 and state.keys.shape[-1] == KEY_DIM
        return replace(state, values=state.values * 2) if crowded else state
