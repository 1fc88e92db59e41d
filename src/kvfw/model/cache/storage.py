"""How a layer holds its slots in memory; computations use :class:`KVState`."""

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
        """Whether no slot of any head is empty or biased, so that attention needs no bias."""

    @property
    def unplaced(self) -> int:
        """Tokens appended last whose positions are not known yet."""

    @property
    def keys(self) -> Tensor | None:
        """``[B, Hkv, N, Dk]``, unplaced tokens included, the same object until they change; None before any."""

    @property
    def values(self) -> Tensor | None:
        """``[B, Hkv, N, Dv]``, likewise."""

    @property
    def width(self) -> int:
        """N: slots of the widest head."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds the keys and values of new tokens, to be placed next."""

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        """Positions ``[B, n]`` of the tokens appended last; ``real`` is False for padding, None if all are real."""

    def state(self) -> KVState:
        """The placed slots; raises UnsupportedError if there are none yet."""

    def hold(self, state: KVState) -> None:
        """Replaces all slots and drops every reference to the old ones."""

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects, reorders or repeats rows."""

    def copy(self) -> "Storage":
        """An independent storage of the same slots."""


class PaddedStorage:
    """Holds a padded state: a head with fewer slots than the widest one has empty slots on the left."""

    def __init__(self) -> None:
        self.plain = True
        self.unplaced = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._state: KVState | None = None

    @property
    def width(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.unplaced = keys.shape[2]
        self.keys = _own(keys) if self.keys is None else torch.cat((self.keys, keys), dim=2)
        self.values = _own(values) if self.values is None else torch.cat((self.values, values), dim=2)

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        count, self.unplaced, old = self.unplaced, 0, self._state
        assert self.keys is not None
        assert self.values is not None
        real_tokens = torch.ones_like(positions, dtype=torch.bool) if real is None else real
        new = exact_state(self.keys[:, :, -count:], self.values[:, :, -count:], positions, real_tokens)
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
        if self._state is None:
            raise UnsupportedError("this layer of the cache is empty: run the prompt through the model first")
        return self._state

    def hold(self, state: KVState) -> None:
        self._state, self.keys, self.values = state, state.keys, state.values
        self.plain = bool((state.valid & (state.bias == 0)).all())

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._state is not None:
            self._state = KVState(*(change(getattr(self._state, part.name)) for part in fields(KVState)))
            self.keys, self.values = self._state.keys, self._state.values

    def copy(self) -> "PaddedStorage":
        return copy.copy(self)


def _own(x: Tensor) -> Tensor:
    """The tensor; a view of something larger (a fused projection's output) is copied, as it would keep that alive."""
    whole = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x if whole else x.clone(memory_format=torch.contiguous_format)
