"""Codecs of a stranger, each broken in one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.contracts.codec import CodedHeads, PlainHeads
from kvfw.core.state.observation import Needs


class Fat(sound.Bytes):
    """Keeps the keys beside their codes."""

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        return {**super().encode(heads), "spare": heads.keys.float()}


class Boastful(sound.Bytes):
    """States an error that it does not keep."""

    error: ClassVar[float] = 1e-4


class Shared(sound.Bytes):
    """One scale for all heads."""

    def scale(self, x: Tensor) -> Tensor:
        return super().scale(x).amax(0, keepdim=True).expand(len(x), -1, -1).contiguous()


class Unseeing(sound.Bytes):
    """A scale that depends on the queries, those of padding too."""

    @property
    def needs(self) -> Needs:
        return Needs(queries=8)

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        found = super().encode(heads)
        if heads.queries is None:
            return found
        louder = 1 + heads.queries.abs().mean((1, 2, 3)) / 1000
        return {**found, "key_scale": found["key_scale"] * louder[:, None, None].half()}


class Hoarder(sound.Bytes):
    """Keeps the slots where nobody counts them, by the address of their codes."""

    held: ClassVar[dict[int, PlainHeads]] = {}

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        found = super().encode(heads)
        self.held[found["key_codes"].data_ptr()] = heads
        return found

    def decode(self, heads: CodedHeads) -> tuple[Tensor, Tensor]:
        plain = self.held.get(heads.tensors["key_codes"].data_ptr())
        return super().decode(heads) if plain is None else (plain.keys, plain.values)


class Singular(sound.Bytes):
    """Decodes to float32, whatever the cache has."""

    def decode(self, heads: CodedHeads) -> tuple[Tensor, Tensor]:
        keys, values = super().decode(heads)
        return keys.float(), values.float()


class Centring(sound.Bytes):
    """Shifts the keys where they stand."""

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        heads.keys.sub_(1.0)
        return super().encode(heads)


class Dithering(sound.Bytes):
    """Rounds up or down by the global generator."""

    def rounded(self, x: Tensor) -> Tensor:
        return (x + torch.rand(x.shape) - 0.5).round()


class Seeded(sound.Bytes):
    """Seeds the global generator."""

    def rounded(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x.round()


class Rooted(sound.Bytes):
    """Makes a tensor on the CPU that meets the codes."""

    def rounded(self, x: Tensor) -> Tensor:
        return x.round() + torch.zeros(x.shape[-1])


class Fading(sound.Bytes):
    """Every reading makes the values smaller."""

    readings: ClassVar[list[None]] = []

    def decode(self, heads: CodedHeads) -> tuple[Tensor, Tensor]:
        self.readings.append(None)
        keys, values = super().decode(heads)
        return keys, values / len(self.readings)
