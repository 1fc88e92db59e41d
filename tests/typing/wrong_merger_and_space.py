"""Mergers, spaces and allocators with one fault each."""

from torch import Tensor

from kvfw import Allocator, KVState, Merger, Part, Rope, Space


class ReturnsKeys(Part):
    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> Tensor:
        return state.keys


class ReturnsThemAllTheSame(Part):
    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return state.keys  # E: Incompatible return value type (got "Tensor", expected "KVState")


class TakesANumber(Part):
    def merge(self, state: KVState, weights: Tensor, budget: int) -> KVState:
        return state


class LosesPositions(Part):
    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return KVState(keys=state.keys, values=state.values)  # E: Missing positional arguments "positions", "mass"


class ChangesInPlace(Part):
    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        state.keys = state.keys * 2  # E: Property "keys" defined in "KVState" is read-only
        return state


class OneWay(Part):
    def forward(self, state: KVState, rope: Rope | None) -> KVState:
        return state


class AlwaysWantsRope(Part):
    def forward(self, state: KVState, rope: Rope) -> KVState:
        return state

    def inverse(self, state: KVState, rope: Rope) -> KVState:
        return state


class OneNumberForAll:
    def allocate(self, total: Tensor) -> int:
        return int(total.sum())


keys: Merger = ReturnsKeys()  # E: Incompatible types # N: weights: Tensor, budget: Tensor) -> KVState # N: ) -> Tensor
number: Merger = TakesANumber()  # E: Incompatible types # N: budget: Tensor) -> KVState # N: budget: int) -> KVState
one_way: Space = OneWay()  # E: Incompatible types # N: is missing following "Space" protocol member # N: inverse
rope: Space = AlwaysWantsRope()  # E: Incompatible types # N: rope: Rope | None) -> KVState # N: rope: Rope) -> KVState
for_all: Allocator = OneNumberForAll()  # E: Incompatible types # N: layers: Sequence[LayerView]) -> Sequence[Tensor]
