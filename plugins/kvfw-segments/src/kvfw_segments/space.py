"""A space between ``post`` and ``pre``."""

import math
from dataclasses import replace

import torch
from pydantic import Field

from kvfw import KVState, Part, Rope, rotate, unrotate


class Slow(Part):
    """Merging happens on keys with RoPE undone in slow pairs only, those of a wavelength above ``wavelength`` tokens.

    Pair ``i`` turns once in ``2 pi / inv_freq_i`` tokens. With ``wavelength=0`` this is the space ``pre``; with a very
    large one it is ``post`` (but for the attention factor of YaRN, which is divided out here as in ``pre``).
    """

    wavelength: float = Field(512, ge=0, description="tokens in which the fastest pair left alone turns once")

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys with the slow pairs turned back to position 0, float32."""
        return state if rope is None else replace(state, keys=unrotate(state.keys, state.positions, self.part_of(rope)))

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys with the slow pairs turned to the state's positions, float32."""
        return state if rope is None else replace(state, keys=rotate(state.keys, state.positions, self.part_of(rope)))

    def part_of(self, rope: Rope) -> Rope:
        """The same rotation with its fast pairs at rest."""
        slow = rope.inv_freq * self.wavelength < 2 * math.pi
        return replace(rope, inv_freq=torch.where(slow, rope.inv_freq, 0))
