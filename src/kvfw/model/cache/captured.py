"""What a layer remembers of the tokens it has seen, besides its slots."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvfw.core.state.moments import Moments
from kvfw.core.state.observation import Columns, References

MOMENTS = tuple(part.name for part in fields(Moments))


class NewTokens(NamedTuple):
    """The tokens of one forward, the same for all layers, so that they are placed once."""

    #: ``[B, n]`` float32; -1 for padding.
    positions: Tensor
    #: ``[B, n]`` bool, False for padding; None if all are real.
    real: Tensor | None
    #: ``[B]``: ``Captured.tokens`` and ``Captured.next`` after them.
    tokens: Tensor
    next: Tensor

    @classmethod
    def after(cls, before: "Captured", positions: Tensor, real: Tensor | None) -> "NewTokens":
        """Tokens at ``positions`` that follow those captured before."""
        following = positions[:, -1] + 1
        if real is None:
            return cls(positions, None, before.tokens + positions.shape[1], following)
        return cls(positions.masked_fill(~real, -1.0), real, before.tokens + real.sum(1), following)

    def to(self, device: torch.device) -> "NewTokens":
        """The same on the device of a layer."""
        if self.positions.device == device:
            return self
        real = None if self.real is None else self.real.to(device)
        return NewTokens(self.positions.to(device), real, self.tokens.to(device), self.next.to(device))


@dataclass(frozen=True)
class Captured:
    """A layer's memory of its tokens: sessions replace it, saved files hold all of it; never changed in place.

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
        columns: other reductions of the attention each slot received, until the first compression.
        references: reference queries and their positions, until the first compression.
        moments: of queries before RoPE, by number of first tokens left out, kept while a compression may need them.
        standing: slots for the middle after a compression while decoding, int64 ``[B, Hkv]``.
        inv_freq: inverse frequencies the keys were rotated with, known from the first compression on.
        seen_at: positions of all tokens seen, float32 ``[B, seen]``; -1 for padding and tokens hidden since. The first
            layer keeps them for all; None if tokens were fed outside any block.
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
    columns: Mapping[Columns, Tensor] = field(default_factory=dict)
    references: Mapping[References, tuple[Tensor, Tensor]] = field(default_factory=dict)
    moments: Mapping[int, Moments] = field(default_factory=dict)
    standing: Tensor | None = None
    inv_freq: Tensor | None = field(default=None, metadata={"of all rows": True})
    seen_at: Tensor | None = None
    seen_ids: Tensor | None = None

    def followed(self, positions: Tensor, ids: Tensor | None) -> "Captured":
        """Adds the last tokens to ``seen_at`` and ``seen_ids``: positions ``[B, n]``, ids where they are known."""
        before = self.seen - positions.shape[1]
        ids = None if ids is None else ids.to(positions.device)
        if before and (self.seen_at is None or self.seen_at.shape[1] != before):
            return replace(self, seen_at=None, seen_ids=None)
        if before and self.seen_at is not None:
            positions = torch.cat((self.seen_at, positions), dim=1)
            ids = None if ids is None or self.seen_ids is None else torch.cat((self.seen_ids, ids), dim=1)
        return replace(self, seen_at=positions, seen_ids=ids)

    def placed(self, new: "NewTokens") -> "Captured":
        """After more tokens; copies all fields at once, as it runs for every layer at every step."""
        after = object.__new__(Captured)
        seen = self.seen + new.positions.shape[1]
        after.__dict__.update(self.__dict__, tokens=new.tokens, next=new.next, seen=seen)
        return after

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> "Captured":
        """The same with rows selected, reordered or repeated."""
        by_row = {part.name: getattr(self, part.name) for part in fields(self) if not part.metadata}
        changed: dict[str, Any] = {name: change(x) for name, x in by_row.items() if isinstance(x, Tensor)}
        return replace(
            self,
            **changed,
            sums={n: change(part) for n, part in self.sums.items()},
            columns={each: change(part) for each, part in self.columns.items()},
            references={each: (change(a), change(b)) for each, (a, b) in self.references.items()},
            moments={n: part.map_rows(change) for n, part in self.moments.items()},
        )

    def compressed_now(self, **changes: Any) -> "Captured":
        """After a compression of all tokens seen: what describes the prompt's own slots is dropped."""
        done = {"compressed": True, "compressed_at": self.seen, "columns": {}, "references": {}}
        return replace(self, **{**done, **changes})

    def written(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies of its tensors by name (``sums.N`` for an entry of ``sums``), as layers share some, and its numbers.

        Only after a compression.
        """
        said = {part.name: getattr(self, part.name) for part in fields(self)}
        tensors = {name: value.clone() for name, value in said.items() if isinstance(value, Tensor)}
        tensors |= {f"sums.{n}": part for n, part in self.sums.items()}
        for n, part in self.moments.items():
            tensors |= {f"moments.{n}.{name}": getattr(part, name) for name in MOMENTS}
        return tensors, {name: value for name, value in said.items() if isinstance(value, int)}

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> "Captured":
        """Reads what :meth:`written` returned; other entries are ignored.

        Raises:
            TypeError, ValueError: an entry has the wrong type or is missing.
        """
        found: dict[str, Any] = {part.name: tensors[part.name] for part in fields(cls) if part.name in tensors}
        found |= {part.name: numbers[part.name] for part in fields(cls) if part.name in numbers}
        found["sums"] = {int(name[5:]): part for name, part in tensors.items() if name.startswith("sums.")}
        left_out = {name.split(".")[1] for name in tensors if name.startswith("moments.")}
        found["moments"] = {int(n): Moments(*(tensors[f"moments.{n}.{name}"] for name in MOMENTS)) for n in left_out}
        if not all(isinstance(found.get(name, 0), int) for name in ("seen", "compressed_at")):
            raise TypeError("its counts of tokens are no numbers")
        return cls(**found)
