"""How a layer's slots are held in memory, apart from :class:`KVState`, the form they are computed with."""

import copy
from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor

from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import UnsupportedError


class Storage(Protocol):
    """The slots of one layer. Tensors handed out are never changed in place, so copies may share them."""

    @property
    def plain(self) -> bool:
        """Whether every slot of every head is real and unbiased: attention then needs no bias."""

    @property
    def unplaced(self) -> int:
        """Tokens appended last whose positions are not known yet."""

    @property
    def keys(self) -> Tensor | None:
        """``[B, Hkv, N, Dk]``, unplaced tokens included, the same object until they change; None before any."""

    @property
    def values(self) -> Tensor | None:
        """``[B, Hkv, N, Dv]``, in the same way."""

    @property
    def width(self) -> int:
        """N: slots of the widest head."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds the keys and values of new tokens, to be placed next."""

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        """Positions ``[B, n]`` of the tokens appended last; ``real`` is False for padding, None if all are real."""

    def state(self) -> KVState:
        """The placed slots."""

    def hold(self, state: KVState) -> None:
        """Replaces all slots; nothing of the old ones is referred to any more."""

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects, reorders or repeats rows."""

    def copy(self) -> "Storage":
        """A storage of the same slots that grows on its own."""


class PaddedStorage:
    """Holds the padded state itself: a head with fewer slots than the widest one has empty slots on the left."""

    def __init__(self) -> None:
        self.plain = True
        self.unplaced = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._state: KVState | None = None

    @property
    def width(self) -> int:
        """Slots per head."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds the keys and values of new tokens."""
        self.unplaced = keys.shape[2]
        self.keys = _own(keys) if self.keys is None else torch.cat((self.keys, keys), dim=2)
        self.values = _own(values) if self.values is None else torch.cat((self.values, values), dim=2)

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        """Gives the tokens appended last their positions."""
        count, self.unplaced = self.unplaced, 0
        assert self.keys is not None
        assert self.values is not None
        real_tokens = torch.ones_like(positions, dtype=torch.bool) if real is None else real
        new, old = (
            exact_state(self.keys[:, :, -count:], self.values[:, :, -count:], positions, real_tokens),
            self._state,
        )
        self._state = KVState(
            keys=self.keys,
            values=self.values,
            positions=new.positions if old is None else torch.cat((old.positions, new.positions), dim=2),
            mass=new.mass if old is None else torch.cat((old.mass, new.mass), dim=2),
            bias=new.bias if old is None else torch.cat((old.bias, new.bias), dim=2),
        )
        if real is not None and self.plain:
            self.plain = bool(real.all())

    def state(self) -> KVState:
        """The placed slots.

        Raises:
            UnsupportedError: there are none yet.
        """
        if self._state is None:
            raise UnsupportedError("this layer of the cache is empty: run the prompt through the model first")
        return self._state

    def hold(self, state: KVState) -> None:
        """Replaces all slots."""
        self._state, self.keys, self.values = state, state.keys, state.values
        self.plain = bool((state.valid & (state.bias == 0)).all())

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects, reorders or repeats rows."""
        if self._state is not None:
            self._state = KVState(*(change(getattr(self._state, part.name)) for part in fields(KVState)))
            self.keys, self.values = self._state.keys, self._state.values

    def copy(self) -> "PaddedStorage":
        """Shares every tensor."""
        return copy.copy(self)


def _own(x: Tensor) -> Tensor:
    """The tensor, copied where it is a view of something larger, such as a fused projection's output.

    A view would keep all of that alive.
    """
    whole = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x if whole else x.clone(memory_format=torch.contiguous_format)
