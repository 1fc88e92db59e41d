"""Holds heads of equal size, one tensor for all of them."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import UnsupportedError
from kvfw.model.cache.storage import HeadSlots, Room, new_room

#: What positions, masses and biases of free slots are set to. Only positions are written for a token that is real.
FREE = (-1.0, 1.0, 0.0)


class PaddedStorage:
    """Holds a padded state: a head with fewer slots than the widest one has empty slots on the left.

    Keys, values, positions, masses and biases are views of buffers that may have room for more slots. The prompt's own
    tokens get none: their number is not known beforehand, and compression drops most of them.
    """

    def __init__(self) -> None:
        self.plain = True
        self.unplaced = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._kv: tuple[Tensor, ...] = ()
        self._about: tuple[Tensor, ...] = ()
        self._state: KVState | None = None
        self._room: Room | None = None
        self._makes_room = False

    @classmethod
    def of(cls, state: KVState) -> "PaddedStorage":
        """Holds these slots; what is appended gets room."""
        held = cls()
        held._state, held.keys, held.values = state, state.keys, state.values
        held._kv, held._about, held._makes_room = state.parts[:2], state.parts[2:], True
        held.plain = bool((state.valid & (state.bias == 0)).all())
        return held

    @property
    def kv(self) -> tuple[Tensor, ...]:
        return self._kv

    @property
    def about(self) -> tuple[Tensor, ...]:
        return self._about

    @property
    def handed(self) -> Tensor | None:
        return self.keys

    @property
    def rows(self) -> int:
        return 0 if self.keys is None else self.keys.shape[0]

    @property
    def width(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        at, self.unplaced, self._state = self.width, keys.shape[2], None
        if self.keys is None or self.values is None:
            self._kv = (_own(keys), _own(values))
        elif not self._makes_room:
            self._kv = (torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2))
        else:
            self._write(at, keys, values)
        self.keys, self.values = self._kv
        if self._room is not None:
            self.keys = self.keys.narrow(2, 0, at + keys.shape[2])
            self.values = self.values.narrow(2, 0, at + keys.shape[2])
        return self.keys, self.values

    def _write(self, at: int, keys: Tensor, values: Tensor) -> None:
        """Writes behind the slots, in new buffers if there is no room."""
        count, old = keys.shape[2], self._kv[0]
        fits = self._room is not None and keys.dtype == old.dtype and not torch.is_grad_enabled()
        if not (fits and self._room is not None and self._room.claim(at, count, old)):
            capacity = at + new_room(at, 1, count)
            kinds = (torch.promote_types(part.dtype, keys.dtype) for part in self._kv)
            parts = self._filled(self._kv, at)
            self._kv = tuple(_with_room(part.to(kind), capacity) for part, kind in zip(parts, kinds, strict=True))
            about = zip(self._filled(self._about, at), FREE, strict=True)
            self._about = tuple(_with_room(part, capacity, free) for part, free in about)
            self._room = Room(at + count, capacity)
        self._kv[0].narrow(2, at, count).copy_(keys)
        self._kv[1].narrow(2, at, count).copy_(values)

    def _filled(self, buffers: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
        """The first ``count`` slots of buffers."""
        return buffers if self._room is None else tuple(part[:, :, :count] for part in buffers)

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        count, self.unplaced = self.unplaced, 0
        assert self.keys is not None
        assert self.values is not None
        new: tuple[Tensor, ...] = (positions[:, None],)
        if self._room is None or real is not None:
            real_tokens = torch.ones_like(positions, dtype=torch.bool) if real is None else real
            new = exact_state(self.keys[:, :, -count:], self.values[:, :, -count:], positions, real_tokens).parts[2:]
        if self._room is None:
            old = self._about
            self._about = tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True)) if old else new
        else:
            for part, added in zip(self._about, new, strict=False):
                part[:, :, self.width - count : self.width] = added
        if real is not None and self.plain:
            self.plain = bool(real.all())

    def state(self) -> KVState:
        if not self._about:
            raise UnsupportedError("this layer of the cache is empty: run the prompt through the model first")
        if self._state is None:
            assert self.keys is not None
            assert self.values is not None
            placed = self.width - self.unplaced
            kv = [part[:, :, :placed] if self.unplaced else part for part in (self.keys, self.values)]
            self._state = KVState(*kv, *self._filled(self._about, placed))
        return self._state

    def heads(self) -> Sequence[HeadSlots] | None:
        return None

    def last(self) -> Tensor:
        return self.state().positions.amax((1, 2))

    def slots(self) -> Tensor:
        return self.state().valid.sum(-1)

    def written(self) -> dict[str, Tensor]:
        return {name: getattr(self.state(), name) for name in ("keys", "values", "positions", "mass", "bias")}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if not self._about:
            return
        width, self._state = self.width, None
        self._kv = tuple(change(part) for part in self._kv)
        self._about = tuple(change(part) for part in self._about)
        if self._room is not None:
            self._room = Room(width, self._room.capacity)
            for part, free in zip(self._about, FREE, strict=True):  # a copy may have written there
                part[:, :, width:] = free
        self.keys, self.values = self._filled(self._kv, width)

    def copy(self) -> "PaddedStorage":
        return copy.copy(self)


def _with_room(part: Tensor, capacity: int, free: float | None = None) -> Tensor:
    """A new tensor with room for ``capacity`` slots that begins with those of ``part``."""
    shape = (*part.shape[:2], capacity, *part.shape[3:])
    roomy = part.new_empty(shape) if free is None else part.new_full(shape, free)
    roomy[:, :, : part.shape[2]] = part
    return roomy


def _own(x: Tensor) -> Tensor:
    """The tensor; a view of something larger (a fused projection's output) is copied, as it would keep that alive."""
    whole = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x if whole else x.clone(memory_format=torch.contiguous_format)
