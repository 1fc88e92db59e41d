"""How a layer holds its slots in memory; computations use :class:`KVState`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvfw.core.state.state import KVState

#: Free slots in a buffer that is made anew: one for this many held, so at most 2 % more memory than the slots need.
SLOTS_PER_FREE_ONE = 50


class HeadSlots(NamedTuple):
    """The slots of one head of one row, as views."""

    #: ``[L, Dk]``
    keys: Tensor
    #: ``[L, Dv]``
    values: Tensor
    #: ``[L]``; None where no slot is empty or biased.
    bias: Tensor | None


class Storage(Protocol):
    """The slots of one layer. Tensors handed out never change, so copies may share them.

    New tokens are written in place behind the slots, while there is room and no copy has written there.
    """

    @property
    def kv(self) -> tuple[Tensor, ...]:
        """Keys and values as they lie in memory, free room included; further tensors if some are coded; none before."""

    @property
    def about(self) -> tuple[Tensor, ...]:
        """Positions, masses and biases, likewise."""

    @property
    def plain(self) -> bool:
        """Whether attention over ``keys`` and ``values`` needs no bias, as no slot of any head is empty or biased."""

    @property
    def unplaced(self) -> int:
        """Tokens appended last whose positions are not known yet."""

    @property
    def handed(self) -> Tensor | None:
        """The keys that the last :meth:`append` returned, the same object until they are placed."""

    @property
    def keys(self) -> Tensor | None:
        """``[B, Hkv, N, Dk]``, unplaced tokens included; None before any."""

    @property
    def values(self) -> Tensor | None:
        """``[B, Hkv, N, Dv]``, likewise."""

    @property
    def rows(self) -> int:
        """B; 0 before any token."""

    @property
    def width(self) -> int:
        """N: slots of the widest head."""

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of new tokens, to be placed next; returns what the model's attention is given."""

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        """Positions ``[B, n]`` of the tokens appended last; ``real`` is False for padding, None if all are real."""

    def state(self) -> KVState:
        """The placed slots, padded; raises UnsupportedError if there are none yet."""

    def heads(self) -> Sequence[HeadSlots] | None:
        """The slots head by head, row by row, where attention is computed so; None where it takes ``keys``."""

    def last(self) -> Tensor:
        """The largest position ``[B]`` in every row."""

    def slots(self) -> Tensor:
        """Slots ``[B, Hkv]`` that are not empty."""

    def written(self) -> Mapping[str, Tensor]:
        """Its tensors by name, without free room; see :func:`kvfw.model.cache.stored.read`."""

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects, reorders or repeats rows."""

    def copy(self) -> "Storage":
        """An independent storage of the same slots."""


class Room:
    """How far a buffer is filled, per head; storages that share the buffer share this object."""

    def __init__(self, filled: int, capacity: int) -> None:
        self.capacity = capacity
        self._filled = {filled}

    def claim(self, at: int, count: int, buffer: Tensor) -> bool:
        """Whether slots from ``at`` on are free and may be written in place, which then nobody else may."""
        if at + count > self.capacity or (buffer.is_inference() and not torch.is_inference_mode_enabled()):
            return False
        try:
            self._filled.remove(at)  # atomic: of two threads, one finds it
        except KeyError:
            return False
        self._filled.add(at + count)
        return True


def new_room(held: int, heads: int, count: int) -> int:
    """Slots per head to make room for, when ``count`` come to each of ``heads``, which hold ``held`` altogether.

    None is spare where gradients are recorded, so that no tensor of a graph is ever written again.
    """
    return count if torch.is_grad_enabled() else max(count, held // SLOTS_PER_FREE_ONE // heads)
