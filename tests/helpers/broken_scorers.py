"""Scorers of a stranger, each broken in one way; the first few only in how they present themselves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, ClassVar

import torch
from pydantic import ConfigDict, SkipValidation
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.contracts.calibration import CalibratedPart, Piece
from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Part, PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation


class NoScore(Part):
    """Has needs, but no scores."""

    needs: int = 0


class Thawed(sound.Norm):
    """Its option can be set."""

    model_config = ConfigDict(frozen=False)

    def __hash__(self) -> int:
        return hash(self.scale)


class Lenient(sound.Norm):
    """Takes any option."""

    model_config = ConfigDict(extra="ignore")


class Pool(Enum):
    """Prints as ``Pool.MEAN`` and reads as ``mean``."""

    MEAN = "mean"


class Unreadable(sound.Norm):
    """Its default, written out, cannot be read."""

    pool: Pool = Pool.MEAN


class Silent(sound.Norm):
    pass


class Flat(sound.Norm):
    """Forgets the heads."""

    def score(self, obs: Observation) -> Tensor:
        return super().score(obs)[:, 0]


class Overflowing(sound.Norm):
    """Infinity minus infinity in float16."""

    def score(self, obs: Observation) -> Tensor:
        large = obs.state.keys.abs().sum(-1) * 1e5
        return (large - large).float()


class LongOnly(sound.Norm):
    """Needs 16 tokens."""

    def score(self, obs: Observation) -> Tensor:
        return super().score(obs) + super().score(obs).unfold(-1, 16, 1).mean()


class PaddingMean(sound.Norm):
    """Compares keys with the mean of all, padding included."""

    def score(self, obs: Observation) -> Tensor:
        keys = obs.state.keys.float()
        return (keys - keys.mean(2, keepdim=True)).square().sum(-1)


class FirstRowFirst(sound.Norm):
    """Turns the scores of every second row around."""

    def score(self, obs: Observation) -> Tensor:
        scores = super().score(obs)
        signs = torch.tensor([(-1.0) ** row for row in range(scores.shape[0])], device=scores.device)
        return scores * signs[:, None, None]


class TwoHeads(sound.Norm):
    """Knows one model only."""

    def score(self, obs: Observation) -> Tensor:
        left, right = super().score(obs).unbind(1)
        return torch.stack((left, right), dim=1)


class AlwaysRotated(sound.Norm):
    """Cannot be without RoPE."""

    def score(self, obs: Observation) -> Tensor:
        assert obs.rope is not None, "no rope"
        return super().score(obs)


class Dice(sound.Norm):
    """Scores at random, by the global generator."""

    def score(self, obs: Observation) -> Tensor:
        return torch.rand_like(obs.state.mass)


class Seeding(sound.Norm):
    """Random scores that are the same every time, at everybody's cost."""

    def score(self, obs: Observation) -> Tensor:
        torch.manual_seed(0)
        return torch.rand_like(obs.state.mass)


class InPlace(sound.Norm):
    """Normalises the keys it was shown."""

    def score(self, obs: Observation) -> Tensor:
        obs.state.keys.div_(2.0)
        return super().score(obs)


class Peeking(sound.Norm):
    """Uses lexical features where somebody else asked for them."""

    def score(self, obs: Observation) -> Tensor:
        scores = super().score(obs)
        return scores if obs.lexical is None else scores + 5 * obs.lexical[:, None]


class Unnarrowed(sound.Norm):
    """Shows the scorer it holds all that it sees itself."""

    inner: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=2)")]

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def score(self, obs: Observation) -> Tensor:
        return self.inner.score(obs)


class Homeless(sound.Norm):
    """Makes a tensor without saying where."""

    def score(self, obs: Observation) -> Tensor:
        return super().score(obs) + torch.arange(obs.state.width)


class Square(sound.Norm):
    """All pairs of keys."""

    def score(self, obs: Observation) -> Tensor:
        keys = obs.state.keys.float()
        return (keys @ keys.transpose(-1, -2)).mean(-1)


class Slow(sound.Norm):
    """Takes its time."""

    def score(self, obs: Observation) -> Tensor:
        time.sleep(0.7)
        return super().score(obs)


class Fickle(CalibratedPart):
    """Learns something else from the same text every time."""

    calibration_needs: ClassVar[Needs] = Needs()
    needs: ClassVar[Needs] = Needs()

    def calibrate(self, pieces: Iterable[Piece]) -> dict[str, Tensor]:
        return {f"{layer}.scale": torch.rand(1) for piece in pieces for layer in piece}

    def score(self, obs: Observation) -> Tensor:
        scores: Tensor = obs.state.keys.float().norm(dim=-1)
        return scores
