"""Holds older slots coded, and newer ones behind them as they are."""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import count, takewhile
from typing import Final

import torch
from torch import Tensor

from kvfw.core.compose.build import build_part
from kvfw.core.compress.coding import CodedGroup, Coder, decoded
from kvfw.core.contracts.codec import Codec, CodedHeads
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.core.state.slots import blanked, chosen_slots, gather, head_sizes, widened
from kvfw.core.state.state import KVState
from kvfw.model.cache.storage import HeadSlots, Storage
from kvfw.model.cache.stored import read, stored

#: Appended slots are coded when so many have come beyond those the codec leaves exact.
BLOCK: Final = 64
TAIL: Final = "tail."


class CodedStorage:
    """Holds the older slots of every head coded, and the newer ones in a storage of their own, the tail.

    Codes are decoded whenever attention reads them, a layer at a time, and nothing decoded is kept. New tokens go to
    the tail. When it has grown by :data:`BLOCK`, its older slots are coded, if the codec does that, just before the
    next tokens come; codes held before stay as they are.
    """

    plain = False

    def __init__(self, coder: Coder, groups: Sequence[CodedGroup], tail: Storage, width: int, sizes: Tensor) -> None:
        """``width`` is that of the padded form, ``sizes`` ``[B * Hkv]`` are the tail's slots in each head."""
        self._coder, self._groups, self._tail = coder, tuple(groups), tail
        self.handed: Tensor | None = None
        #: Slots of the padded form before those of the tail's; the tail's slots when it was made.
        self._before, self._tail_width, self._sizes = width - tail.width, tail.width, sizes
        self._even = bool((self._counts() == self._before).all() & (sizes == tail.width).all())

    @classmethod
    def of(cls, state: KVState, coder: Coder, obs: Observation | None = None) -> "CodedStorage":
        """Codes a state with empty slots on the left only; ``obs`` shows the layer's last queries."""
        groups, rest = coder.coded(state, obs)
        return cls(coder, groups, stored(rest), state.width, head_sizes(rest).flatten())

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], layer: int) -> "CodedStorage":
        """Holds what :meth:`written` returned.

        Raises:
            KeyError, ValueError: a tensor is missing, or they do not fit together.
            RequestError: no such codec is installed.
        """
        text = bytes(tensors["codec"].tolist()).decode()
        part = build_part(Kind.CODEC, text).value
        assert isinstance(part, Codec)
        tail = read(_named(tensors, TAIL))
        state, groups = tail.state(), []
        dims, shape = (state.keys.shape[-1], state.values.shape[-1]), state.mass.shape[:2]
        for own in takewhile(bool, (_named(tensors, f"coded.{number}.") for number in count())):
            heads, about = tuple(own.pop("heads").tolist()), own.pop("about")
            if any(len(x) != len(heads) for x in (about, *own.values())) or max(heads) >= shape.numel():
                raise ValueError(f"its coded heads {heads} do not fit {shape[0]} rows of {shape[1]} heads")
            codes = CodedHeads(_named(own, "codes."), layer, about.shape[1], dims, state.keys.dtype)
            groups.append(CodedGroup(heads, codes, about))
        return cls(Coder(part, text, layer), groups, tail, int(tensors["width"]), tensors["sizes"])

    def _counts(self) -> Tensor:
        """Coded slots ``[B * Hkv]`` of every head."""
        found = torch.zeros_like(self._sizes)
        for group in self._groups:
            found[list(group.heads)] += group.codes.slots
        return found

    @property
    def kv(self) -> tuple[Tensor, ...]:
        codes = (part for group in self._groups for part in group.codes.tensors.values())
        return (*self._tail.kv, *codes)

    @property
    def about(self) -> tuple[Tensor, ...]:
        return (*self._tail.about, *(group.about for group in self._groups))

    @property
    def unplaced(self) -> int:
        return self._tail.unplaced

    @property
    def keys(self) -> Tensor:
        return self._with_unplaced(self.state().keys, self._tail.keys)

    @property
    def values(self) -> Tensor:
        return self._with_unplaced(self.state().values, self._tail.values)

    def _with_unplaced(self, placed: Tensor, tail: Tensor | None) -> Tensor:
        assert tail is not None
        return torch.cat((placed, tail[:, :, tail.shape[2] - self.unplaced :]), 2)

    @property
    def rows(self) -> int:
        return self._tail.rows

    @property
    def width(self) -> int:
        return self._before + self._tail.width

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self._coder.grows and self._tail.width >= self._coder.exact + max(BLOCK, self._coder.group):
            self._grow()
        self._tail.append(keys, values)
        self.handed = keys
        return keys, values

    def _grow(self) -> None:
        """Codes the older slots of the tail, unless there is padding between them."""
        state, sizes = self._tail.state(), self._tail_sizes()
        if not torch.equal(state.valid.sum(-1).flatten(), sizes):
            return
        new, rest = self._coder.coded(state)
        groups, sizes = (*self._groups, *new), head_sizes(rest).flatten()
        self.__dict__ = CodedStorage(self._coder, groups, stored(rest), self.width, sizes).__dict__

    def _tail_sizes(self) -> Tensor:
        """The tail's placed slots ``[B * Hkv]`` in each head."""
        return self._sizes + (self._tail.width - self._tail.unplaced - self._tail_width)

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        self._tail.place(positions, real)
        self.handed = None

    def state(self) -> KVState:
        tail = self._tail.state()
        pieces = [*(self._padded(group, tail) for group in self._groups), tail]
        whole = KVState(*(torch.cat(parts, 2) for parts in zip(*(each.parts for each in pieces), strict=True)))
        if self._even:
            return whole
        # Where heads differ, empty slots of the pieces are moved to the left of the whole.
        places = torch.arange(tail.width, device=tail.keys.device) - tail.width
        held = [self._of_heads(group, torch.ones_like(group.about[..., 0])) for group in self._groups]
        held.append((places >= -self._tail_sizes()[:, None]).view_as(tail.mass))
        width = self._before + tail.width
        there = torch.cat([each.bool() for each in held], 2)
        there = torch.nn.functional.pad(there, (max(width - whole.width, 0), 0))
        whole = gather(widened(whole, max(width, whole.width)), chosen_slots(there, width))
        real = torch.arange(width, device=there.device) >= width - there.sum(-1, keepdim=True)
        return blanked(whole, real)

    def _padded(self, group: CodedGroup, tail: KVState) -> KVState:
        """The slots of a group for all heads, empty in those that are not in it."""
        keys, values = decoded(self._coder.codec, group.codes)
        parts = (keys, values, *group.about.unbind(-1))
        if len(group.heads) == len(self._sizes):
            return KVState(*(part.view(*tail.mass.shape[:2], *part.shape[1:]) for part in parts))
        return KVState(*(self._of_heads(group, part) for part in parts))

    def _of_heads(self, group: CodedGroup, part: Tensor) -> Tensor:
        """``[B, Hkv, L, ...]`` of ``[R, L, ...]``, zero in heads that are not in the group."""
        whole = part.new_zeros(len(self._sizes), *part.shape[1:])
        whole[list(group.heads)] = part
        return whole.view(self.rows, -1, *part.shape[1:])

    def heads(self) -> Sequence[HeadSlots] | None:
        if self._even:
            return None
        found: list[list[HeadSlots]] = [[] for _ in self._sizes]
        for group in self._groups:
            keys, values = decoded(self._coder.codec, group.codes)
            for place, head in enumerate(group.heads):
                found[head].append(HeadSlots(keys[place], values[place], group.about[place, :, 2]))
        tail, sizes = self._tail.state(), self._tail_sizes().tolist()
        parts = (tail.keys.flatten(0, 1), tail.values.flatten(0, 1), tail.bias.flatten(0, 1))
        for head, size in enumerate(sizes):
            found[head].append(HeadSlots(*(part[head, tail.width - size :] for part in parts)))
        return [HeadSlots(*map(torch.cat, zip(*pieces, strict=True))) for pieces in found]

    def last(self) -> Tensor:
        last = self._tail.last() if self._tail.width else torch.full((self.rows,), -1.0, device=self._sizes.device)
        for group in self._groups:
            last = torch.maximum(last, self._of_heads(group, group.about[..., 0]).amax((1, 2)))
        return last

    def slots(self) -> Tensor:
        found = self._tail.slots()
        for group in self._groups:
            found = found + self._of_heads(group, group.about[..., 1] > 0).sum(-1)
        return found

    def written(self) -> dict[str, Tensor]:
        found = {f"{TAIL}{name}": part for name, part in self._tail.written().items()}
        for number, group in enumerate(self._groups):
            found |= {f"coded.{number}.codes.{name}": part for name, part in group.codes.tensors.items()}
            found |= {f"coded.{number}.about": group.about, f"coded.{number}.heads": torch.tensor(group.heads)}
        text = torch.tensor(list(self._coder.text.encode()), dtype=torch.uint8)
        return {**found, "codec": text, "width": torch.tensor(self.width), "sizes": self._tail_sizes()}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        heads = torch.arange(len(self._sizes), device=self._sizes.device)
        chosen = change(heads.view(self.rows, -1)).flatten()
        self._tail.map_rows(change)
        groups = [group.chosen(chosen.tolist()) for group in self._groups]
        self._groups, self._sizes = tuple(group for group in groups if group is not None), self._sizes[chosen]
        # The padded form keeps its width, as other tensors of the layer do.
        self._even = self._even and len(self._groups) == len(groups)

    def copy(self) -> "CodedStorage":
        copied = copy.copy(self)
        copied._tail = self._tail.copy()
        return copied


def _named(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(start): part for name, part in tensors.items() if name.startswith(start)}
