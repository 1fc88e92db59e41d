"""What a layer remembers of the tokens that went through it, beside its slots."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Captured:
    """One value per layer: sessions replace it, saved files hold all of it. Never changed in place.

    Args:
        tokens: real tokens seen by every row, int64 ``[B]``.
        next: position after the last one, float32 ``[B]``.
        seen: tokens seen, padding included.
        compressed: whether the layer was compressed.
        compressed_at: tokens seen at the last compression.
        moved: whether a compression rotated slots to other positions than their tokens had.
        queries: the last queries ``[B, H, w, D]``, kept while a compression may need them.
        query_positions: their positions ``[B, w]``; -1 for padding.
        sums: attention each slot received so far ``[B, Hkv, N]``, by distance, kept while a compression may need it.
        standing: slots for the middle that compression while decoding goes down to, int64 ``[B, Hkv]``.
        inv_freq: inverse frequencies the keys were rotated with, known from the first compression on.
        seen_at: where every token seen stood, float32 ``[B, seen]``; -1 for padding and for what a mask has hidden
            since. Kept for all layers by the first; None where tokens went through it outside any block.
        seen_ids: their ids ``[B, seen]``; None where the model was given embeddings.
    """

    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    next: Tensor = field(default_factory=lambda: torch.zeros(0))
    seen: int = 0
    compressed: bool = False
    compressed_at: int = 0
    moved: bool = False
    queries: Tensor | None = None
    query_positions: Tensor | None = None
    sums: Mapping[int, Tensor] = field(default_factory=dict)
    standing: Tensor | None = None
    inv_freq: Tensor | None = field(default=None, metadata={"of all rows": True})
    seen_at: Tensor | None = None
    seen_ids: Tensor | None = None

    def followed(self, positions: Tensor, ids: Tensor | None) -> "Captured":
        """With the last tokens seen noted: positions ``[B, n]``, ids where they are known."""
        before = self.seen - positions.shape[1]
        ids = None if ids is None else ids.to(positions.device)
        if before and (self.seen_at is None or self.seen_at.shape[1] != before):
            return replace(self, seen_at=None, seen_ids=None)
        if before and self.seen_at is not None:
            positions = torch.cat((self.seen_at, positions), dim=1)
            ids = None if ids is None or self.seen_ids is None else torch.cat((self.seen_ids, ids), dim=1)
        return replace(self, seen_at=positions, seen_ids=ids)

    def placed(self, tokens: Tensor, following: Tensor, count: int) -> "Captured":
        """After ``count`` more tokens. At every step of every layer, so fields are copied at once, not one by one."""
        after = object.__new__(Captured)
        after.__dict__.update(self.__dict__, tokens=tokens, next=following, seen=self.seen + count)
        return after

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "Captured":
        """The same with rows selected, reordered or repeated."""
        changed: dict[str, Any] = {}
        for name in (part.name for part in fields(self) if not part.metadata):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changed[name] = change(value)
            elif isinstance(value, Mapping):
                changed[name] = {key: change(part) for key, part in value.items()}
        return replace(self, **changed)

    def written(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors by name (``sums.N`` for an entry of a mapping) and its numbers."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, value in ((part.name, getattr(self, part.name)) for part in fields(self)):
            if isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, Mapping):
                tensors |= {f"{name}.{key}": part for key, part in value.items()}
            elif value is not None:
                numbers[name] = value
        return tensors, numbers

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> "Captured":
        """What :meth:`written` gave, among other things.

        Raises:
            TypeError, ValueError: something in it has the wrong type, or is missing.
        """
        found: dict[str, Any] = {part.name: tensors[part.name] for part in fields(cls) if part.name in tensors}
        found |= {part.name: numbers[part.name] for part in fields(cls) if part.name in numbers}
        found["sums"] = {int(name[5:]): part for name, part in tensors.items() if name.startswith("sums.")}
        if not all(isinstance(found.get(name, 0), int) for name in ("seen", "compressed_at")):
            raise TypeError("its counts of tokens are no numbers")
        return cls(**found)
