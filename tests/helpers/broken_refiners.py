"""Refiners of a stranger, each broken in one way."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState


class Moving(sound.Louder):
    """Moves its slots by one place."""

    def refine(self, state: KVState, obs: Observation) -> KVState:
        return replace(state, positions=torch.where(state.valid, state.positions + 1, state.positions))


class Restless(sound.Louder):
    """Changes heads that lost nothing."""

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        return super().gain(state, obs) + 0.1


class Scribbling(sound.Louder):
    """Doubles the values where they stand."""

    def refine(self, state: KVState, obs: Observation) -> KVState:
        state.values.mul_(2.0)
        return state


class Widthwise(sound.Louder):
    """Counts padding as tokens."""

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        return (obs.state.width / state.valid.sum(-1).clamp(min=1)).log()


class Uncounted(sound.Louder):
    """Divides by the number of tokens dropped."""

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        return 1 / (obs.state.valid.sum(-1) - state.valid.sum(-1))


class Listening(sound.Louder):
    """Uses lexical features where somebody else asked for them."""

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        gain = super().gain(state, obs)
        return gain if obs.lexical is None else gain + obs.lexical.clamp(max=1).sum(-1, keepdim=True)


class Drifting(sound.Louder):
    """Adds noise, by the global generator."""

    def gain(self, state: KVState, obs: Observation) -> Tensor:
        return super().gain(state, obs) * torch.rand(())
