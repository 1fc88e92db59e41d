"""The space before rotary position embedding."""

from dataclasses import replace

from kvfw.core.options import Part
from kvfw.core.rope import Rope, rotate, unrotate
from kvfw.core.state import KVState


class Pre(Part):
    """Merging happens on keys with RoPE undone, ``k = R(-p) k' / a``; the results are rotated to their positions.

    Positions may be fractional after merging: angles are computed, never looked up. Layers without RoPE are left as
    they are. Source: RoPE, Su et al. 2021, arXiv 2104.09864.
    """

    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys before RoPE, float32."""
        return state if rope is None else replace(state, keys=unrotate(state.keys, state.positions, rope))

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        """Keys rotated to the state's positions, float32."""
        return state if rope is None else replace(state, keys=rotate(state.keys, state.positions, rope))
