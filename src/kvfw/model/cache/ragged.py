"""Holds heads of different sizes without padding."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kvfw.core.state.slots import head_sizes
from kvfw.core.state.state import KVState
from kvfw.model.cache.storage import HeadSlots, Room, new_room

#: What empty slots of the padded form hold: keys, values, positions, masses, biases.
EMPTY = (0.0, 0.0, -1.0, 0.0, -torch.inf)
#: What free slots hold: masses and biases need not be written for a token that is real.
FREE = (0.0, 0.0, -1.0, 1.0, 0.0)
NAMES = ("keys", "values", "positions", "mass", "bias")


@dataclass(frozen=True)
class Regions:
    """Where heads lie in a flat tensor: one after the other, row by row, each followed by the same room.

    Args:
        rows, heads: B and Hkv.
        width: slots per head of the padded form. It may be wider than any head, after rows were selected.
        lengths: slots of every head, row by row.
        room: free slots behind each head.
    """

    rows: int
    heads: int
    width: int
    lengths: tuple[int, ...]
    room: int = 0

    def starts(self) -> list[int]:
        """First slot of every head."""
        return list(accumulate((length + self.room for length in self.lengths[:-1]), initial=0))

    def grown(self, count: int) -> "Regions":
        """The same heads after ``count`` of each head's free slots were filled."""
        lengths = tuple(length + count for length in self.lengths)
        return replace(self, width=self.width + count, lengths=lengths, room=self.room - count)

    def cut(self, flat: Tensor) -> Sequence[Tensor]:
        """The slots of every head, as views."""
        sizes = [size for length in self.lengths for size in (length, self.room)]
        return torch.split(flat, sizes)[::2]


class RaggedStorage:
    """Holds the slots of every head one after the other in flat tensors ``[T, ...]``, with no empty ones between.

    The padded form is made whenever it is asked for, and not kept: attention works head by head instead.
    """

    plain = False

    def __init__(self, layout: Regions, parts: Sequence[Tensor]) -> None:
        self.unplaced = 0
        self.handed: Tensor | None = None
        self._hold(layout, parts)
        biased = torch.stack([(bias != 0).any() for bias in layout.cut(parts[4])])
        self._biased: tuple[bool, ...] = tuple(biased.tolist())

    @classmethod
    def of(cls, state: KVState) -> "RaggedStorage":
        """Holds the slots of a padded state without the empty ones on the left of its heads."""
        lengths = head_sizes(state)
        rows, heads, width = state.mass.shape
        held = torch.arange(width, device=lengths.device) >= width - lengths[..., None]
        layout = Regions(rows, heads, width, tuple(lengths.flatten().tolist()))
        return cls(layout, [part[held] for part in state.parts])

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> "RaggedStorage":
        """Holds what :meth:`written` returned.

        Raises:
            ValueError: shapes and lengths do not fit together.
            KeyError: a tensor is missing.
        """
        parts, lengths = [tensors[name] for name in NAMES], tensors["lengths"]
        sizes = tuple(int(length) for length in lengths.flatten().tolist())
        width = int(tensors["width"])
        fits = lengths.ndim == 2 and [part.ndim for part in parts] == [2, 2, 1, 1, 1] and min(sizes) >= 0
        if not fits or max(sizes) > width or any(len(part) != sum(sizes) for part in parts):
            raise ValueError(f"heads of {sizes} slots do not fit tensors of {[tuple(part.shape) for part in parts]}")
        return cls(Regions(lengths.shape[0], lengths.shape[1], width, sizes), parts)

    def _hold(self, layout: Regions, parts: Sequence[Tensor]) -> None:
        """Holds new buffers, with nothing written into their free room."""
        self._layout, self._parts, self._added = layout, tuple(parts), 0
        self._room = Room(0, layout.room)
        ends = [start + length for start, length in zip(layout.starts(), layout.lengths, strict=True)]
        self._ends = torch.tensor(ends, device=parts[0].device)
        #: Where the tokens appended last lie.
        self._places = self._ends[:0]

    @property
    def kv(self) -> tuple[Tensor, ...]:
        return self._parts[:2]

    @property
    def about(self) -> tuple[Tensor, ...]:
        return self._parts[2:]

    @property
    def keys(self) -> Tensor:
        return self._padded(0, self._added)

    @property
    def values(self) -> Tensor:
        return self._padded(1, self._added)

    @property
    def rows(self) -> int:
        return self._layout.rows

    @property
    def width(self) -> int:
        return self._layout.width + self._added

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        count, kind = keys.shape[2], self._parts[0].dtype
        fits = keys.dtype == kind and not torch.is_grad_enabled()
        if not (fits and self._room.claim(self._added, count, self._parts[0])):
            heads = len(self._layout.lengths)
            held = sum(self._layout.lengths) + heads * self._added
            self._lay_out(new_room(held, heads, count), torch.promote_types(kind, keys.dtype))
            self._room.claim(0, count, self._parts[0])
        ends = self._ends + self._added
        places = ends if count == 1 else (ends[:, None] + torch.arange(count, device=ends.device)).flatten()
        self._parts[0].index_copy_(0, places, keys.flatten(0, 2))
        self._parts[1].index_copy_(0, places, values.flatten(0, 2))
        self._places = places
        self._added += count
        self.unplaced, self.handed = count, keys
        return keys, values

    def _lay_out(self, room: int, kind: torch.dtype) -> None:
        """Copies the slots into new buffers with this room behind every head."""
        grown = self._layout.grown(self._added)
        parts = (*(part.to(kind) for part in self._parts[:2]), *self._parts[2:])
        self._hold(replace(grown, room=room), _laid(grown, parts, room))

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        heads, new = self._layout.heads, [positions]
        if real is not None:
            mass = real.to(torch.float32)
            new += [mass, torch.zeros_like(mass).masked_fill(~real, -torch.inf)]
            padded = (~real).any(1).repeat_interleave(heads).tolist()
            self._biased = tuple(before or now for before, now in zip(self._biased, padded, strict=True))
        for part, of_rows in zip(self._parts[2:], new, strict=False):
            part.index_copy_(0, self._places, of_rows[:, None].expand(-1, heads, -1).flatten())
        self.unplaced, self.handed = 0, None

    def state(self) -> KVState:
        return KVState(*(self._padded(part, self._added - self.unplaced) for part in range(5)))

    def _padded(self, part: int, added: int) -> Tensor:
        """The padded form ``[B, Hkv, N, ...]`` of one part, a new tensor, with so many of the slots added."""
        layout, flat = self._layout.grown(added), self._parts[part]
        device = flat.device
        lengths = torch.tensor(layout.lengths, device=device)[:, None]
        slot = torch.arange(layout.width, device=device) - (layout.width - lengths)
        index = (slot + torch.tensor(layout.starts(), device=device)[:, None]).masked_fill(slot < 0, 0)
        shape = (layout.rows, layout.heads, layout.width)
        gone = (slot < 0).view(*shape, *[1] * (flat.ndim - 1))
        return flat.index_select(0, index.flatten()).view(*shape, *flat.shape[1:]).masked_fill_(gone, EMPTY[part])

    def heads(self) -> Sequence[HeadSlots]:
        grown = self._layout.grown(self._added)
        keys, values = grown.cut(self._parts[0]), grown.cut(self._parts[1])
        if not any(self._biased):
            return [HeadSlots(*own, None) for own in zip(keys, values, strict=True)]
        biases = grown.cut(self._parts[4])
        every = zip(keys, values, biases, self._biased, strict=True)
        return [HeadSlots(key, value, bias if biased else None) for key, value, bias, biased in every]

    def last(self) -> Tensor:
        return self._padded(2, self._added - self.unplaced).amax((1, 2))

    def slots(self) -> Tensor:
        return (self._padded(3, self._added - self.unplaced) > 0).sum(-1)

    def written(self) -> dict[str, Tensor]:
        grown = self._layout.grown(self._added)
        parts = {name: torch.cat(list(grown.cut(part))) for name, part in zip(NAMES, self._parts, strict=True)}
        lengths = torch.tensor(grown.lengths).view(grown.rows, grown.heads)
        return {**parts, "lengths": lengths, "width": torch.tensor(grown.width)}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        old = self._layout.grown(self._added)
        rows = change(torch.arange(old.rows, device=self._ends.device)).tolist()
        chosen = [row * old.heads + head for row in rows for head in range(old.heads)]
        lengths = tuple(old.lengths[place] for place in chosen)
        room = new_room(sum(lengths), len(lengths), 0)
        parts = _laid(old, self._parts, room, chosen)
        self._hold(Regions(len(rows), old.heads, old.width, lengths, room), parts)
        self._biased = tuple(self._biased[place] for place in chosen)

    def copy(self) -> "RaggedStorage":
        return copy.copy(self)


def _laid(layout: Regions, parts: Sequence[Tensor], room: int, chosen: Sequence[int] | None = None) -> list[Tensor]:
    """New flat tensors of all heads, or of those at the ``chosen`` places, with room behind each."""
    places, new = range(len(layout.lengths)) if chosen is None else chosen, []
    for part, free in zip(parts, FREE, strict=True):
        heads, gap = layout.cut(part), part.new_full((room, *part.shape[1:]), free)
        new.append(torch.cat([piece for place in places for piece in (heads[place], gap)]))
    return new
