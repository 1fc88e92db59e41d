"""A merger, a space, an allocator."""

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float, Int64
from torch import Tensor

from kvfw import Allocator, KVState, LayerView, Merger, Part, Rope, Space


class Nothing(Part):
    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        return state


class Doubled(Part):
    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        return replace(state, keys=state.keys * 2)

    def inverse(self, state: KVState, rope: Rope | None) -> KVState:
        return replace(state, keys=state.keys / 2)


class FirstLayer:
    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Tensor]:
        return [total[:, None].expand(-1, layer.kv_heads) for layer in layers]


nothing: Merger = Nothing()
doubled: Space = Doubled()
first_layer: Allocator = FirstLayer()
