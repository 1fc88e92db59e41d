"""The space of keys as cached."""

from typing import ClassVar

from kvfw.core.parts.part import Part
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState


class Post(Part):
    """Merging happens on the keys as cached, after RoPE.

    Averaging keys rotated to different positions mixes their phases: the high-frequency pairs of distant tokens
    cancel. Compare with ``pre``. Formula: ``k = k'``, both ways.

    Source: the founding experiment.
    """

    rows_apart: ClassVar[bool] = True

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        """The same state."""
        return state

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        """The same state."""
        return state
