"""The space before rotary position embedding."""

from dataclasses import replace
from typing import ClassVar

from kvfw.core.parts.part import Part
from kvfw.core.state.rope import Rope, rotate, unrotate
from kvfw.core.state.state import KVState


class Pre(Part):
    """Merging happens on keys with RoPE undone, ``k = R(-p) k' / a``; the results are rotated to their positions.

    Positions may be fractional after merging: angles are computed, never looked up. Layers without RoPE do not change.

    Source: the founding experiment. RoPE itself: Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position
    Embedding, arXiv 2104.09864.

    Deviations: the attention factor ``a`` of YaRN and LongRoPE is divided out and applied once on the way back.
    Rotating back and forth in float32 costs a relative error of about 1e-7; keys that were stored in half precision
    keep the error they were stored with.
    """

    rows_apart: ClassVar[bool] = True

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys before RoPE, float32."""
        return state if rope is None else replace(state, keys=unrotate(state.keys, state.positions, rope))

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys rotated to the state's positions, float32."""
        return state if rope is None else replace(state, keys=rotate(state.keys, state.positions, rope))
