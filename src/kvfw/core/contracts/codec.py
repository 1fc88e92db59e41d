"""The contract of codecs, which hold finished slots in fewer bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvfw.core.state.observation import Needs


@dataclass(frozen=True)
class PlainHeads:
    """Slots to be coded, of R heads of one layer that have equally many of them; none is empty.

    Which rows and heads of a batch they belong to does not matter: a codec codes every head by itself.

    Args:
        keys, values: as cached, oldest slots first.
        layer: index of the layer in the model.
        queries: the last queries of each head's query heads, if the codec needs them and they are known.
        seen: which of these queries are real, not padding.
    """

    keys: Float[Tensor, "R L Dk"]
    values: Float[Tensor, "R L Dv"]
    layer: int
    queries: Float[Tensor, "R G w Dk"] | None = None
    seen: Bool[Tensor, "R w"] | None = None


@dataclass(frozen=True)
class CodedHeads:
    """The same slots, coded.

    Args:
        tensors: what :meth:`Codec.encode` returned, by name.
        layer: index of the layer in the model.
        slots: L, slots of each head.
        dims: ``Dk`` and ``Dv``.
        dtype: of keys and values, decoded.
    """

    tensors: Mapping[str, Tensor]
    layer: int
    slots: int
    dims: tuple[int, int]
    dtype: torch.dtype


@runtime_checkable
class Codec(Protocol):
    """Holds keys and values in fewer bytes. Positions, masses and biases are never coded.

    It may further have: ``exact`` (0: so many of the newest slots of every head are held as they are), ``group`` (1:
    slots are coded in multiples of it; what is left over stays as it is) and ``grows`` (True: slots appended later are
    coded too, many at a time, without the queries; False: only by the next compression) and ``error`` (1: for normally
    distributed numbers, the most that the root mean square of the differences may be of that of the numbers).
    """

    @property
    def needs(self) -> Needs:
        """What must be observed for :meth:`encode`: nothing but queries."""

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        """All that is held of the slots: tensors whose first dimension are the R heads. Their bytes are what counts."""

    def decode(self, heads: CodedHeads) -> tuple[Float[Tensor, "R L Dk"], Float[Tensor, "R L Dv"]]:
        """Keys and values as attention sees them, of ``heads.dtype``; called at every step."""
