"""Selectors, mergers and spaces of a stranger, each broken in one way."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import Rope, rotate
from kvfw.core.state.state import KVState


class Numbers(sound.Best):
    """Returns numbers in place of a mask."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return super().select(scores, budget, eligible, obs).to(torch.int64)


class Evened(sound.Best):
    """Gives every head the largest budget."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return super().select(scores, budget.max().expand_as(budget), eligible, obs)


class Tempted(sound.Best):
    """Looks at scores only."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return super().select(scores, budget, torch.ones_like(eligible), obs)


class LastFirst(sound.Best):
    """Ties go to the highest position."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return super().select(scores.flip(-1), budget, eligible.flip(-1), obs).flip(-1)


class Masking(sound.Best):
    """Masks the scores it was given."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return super().select(scores.masked_fill_(~eligible, -torch.inf), budget, eligible, obs)


class OneLess(sound.Segments):
    """Leaves one slot of its budget unused."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return super().merge(state, weights, (budget - 1).clamp(min=1))


class Forgetful(sound.Segments):
    """Counts slots in place of masses."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return super().merge(replace(state, mass=state.valid.float()), weights, budget)


class Inventive(sound.Segments):
    """May lose tokens, and invents some."""

    loses_mass: ClassVar[bool] = True

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        merged = super().merge(state, weights, budget)
        return replace(merged, mass=merged.mass * 1.01)


class Unbiased(sound.Segments):
    """Forgets the biases."""

    def bias(self, biases: Tensor) -> Tensor:
        return torch.zeros(())


class Shrinking(sound.Segments):
    """Divides values by the number of tokens once too often."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        merged = super().merge(state, weights, budget)
        return replace(merged, values=merged.values / merged.mass.clamp(min=1)[..., None])


class Backwards(sound.Segments):
    """The last slot first."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        merged = super().merge(state, weights, budget)
        return replace(merged, positions=torch.where(merged.valid, merged.positions.flip(-1), merged.positions))


class Smoothing(sound.Segments):
    """Touches slots that stand alone."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        merged = super().merge(state, weights, budget)
        return replace(merged, keys=merged.keys * 1.0001)


class Dividing(sound.Segments):
    """Divides by weights that may be 0."""

    def shares(self, weights: Tensor) -> Tensor:
        return weights / weights.sum()


class Overwriting(sound.Segments):
    """Weights the values where they stand."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        state.values.mul_(weights[..., None] + 1)
        return super().merge(state, weights, budget)


class TwiceScaled(sound.Unturned):
    """Forgets that the attention factor is in the cached keys already."""

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        back = super().inverse(state, rope)
        return back if rope is None else sound.with_keys(back, back.keys * rope.scaling)


class Shifting(sound.Unturned):
    """Moves slots to whole positions."""

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        positions = state.positions.round()
        keys = state.keys if rope is None else rotate(state.keys, positions, rope)
        return replace(state, keys=keys, positions=positions)
