"""Codes the finished slots of a layer, and holds codecs to their contract."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32
from torch import Tensor

from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.contracts.codec import Codec, CodedHeads, PlainHeads
from kvfw.core.state.observation import Needs
from kvfw.core.state.slots import head_sizes, take
from kvfw.core.state.state import KVState
from kvfw.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvfw.core.state.observation import Observation


@dataclass(frozen=True)
class CodedGroup:
    """The same number of coded slots of some heads of a layer.

    Args:
        heads: which they are, counted row by row.
        codes: their keys and values.
        about: their positions, masses and biases.
    """

    heads: tuple[int, ...]
    codes: CodedHeads
    about: Float32[Tensor, "R L 3"]

    def chosen(self, chosen: "Sequence[int]") -> "CodedGroup | None":
        """The group of a layer whose i-th head is the ``chosen[i]``-th of this one; None if none of them is here."""
        places = {head: place for place, head in enumerate(self.heads)}
        pairs = [(new, places[old]) for new, old in enumerate(chosen) if old in places]
        if not pairs:
            return None
        at = torch.tensor([place for _, place in pairs], device=self.about.device)
        tensors = {name: part.index_select(0, at) for name, part in self.codes.tensors.items()}
        codes = replace(self.codes, tensors=tensors)
        return CodedGroup(tuple(new for new, _ in pairs), codes, self.about.index_select(0, at))


@dataclass(frozen=True)
class Coder:
    """Codes slots of one layer.

    Args:
        codec: the codec.
        text: its canonical text.
        layer: index of the layer in the model.
    """

    codec: Codec
    text: str
    layer: int

    @property
    def exact(self) -> int:
        """So many of the newest slots of a head are held as they are."""
        return int(getattr(self.codec, "exact", 0))

    @property
    def group(self) -> int:
        """Slots are coded in multiples of this."""
        return int(getattr(self.codec, "group", 1))

    @property
    def grows(self) -> bool:
        """Whether slots appended after a compression are coded before the next."""
        return bool(getattr(self.codec, "grows", True))

    def coded(self, state: KVState, obs: "Observation | None" = None) -> tuple[tuple[CodedGroup, ...], KVState]:
        """The oldest slots of every head, coded, and the other slots as they are.

        ``state`` has empty slots on the left only. ``obs`` shows the layer's last queries, where they are known.

        Raises:
            RunError: the codec failed or broke its contract.
        """
        sizes = head_sizes(state)
        counts = (sizes - self.exact).clamp(min=0) // self.group * self.group
        first = state.width - sizes
        groups = []
        for count in sorted(set(counts.flatten().tolist()) - {0}):
            heads = (counts.flatten() == count).nonzero()[:, 0]
            at = first.flatten()[heads][:, None] + torch.arange(count, device=heads.device)
            keys, values, *about = (part.flatten(0, 1)[heads[:, None], at] for part in state.parts)
            plain = PlainHeads(keys, values, self.layer, *_queries(obs, heads, needs_of(self.codec, "codec")))
            groups.append(CodedGroup(tuple(heads.tolist()), encoded(self.codec, plain), torch.stack(about, -1)))
        left = torch.arange(state.width, device=first.device) >= (first + counts)[..., None]
        return tuple(groups), take(state, left)


def _queries(obs: "Observation | None", heads: Tensor, needs: Needs) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The last queries of some KV heads, counted row by row, and which of them are real."""
    if needs != Needs(queries=needs.queries):
        raise RunError("a codec needs more than queries; only queries are shown to codecs")
    if obs is None or not needs.queries:
        return None, None
    queries, positions = obs.narrowed(needs).window()
    kv_heads = obs.state.keys.shape[1]
    by_head = queries.reshape(len(queries) * kv_heads, -1, *queries.shape[2:])
    return by_head[heads], (positions >= 0).repeat_interleave(kv_heads, 0)[heads]


def encoded(codec: Codec, heads: PlainHeads) -> CodedHeads:
    """The codes of these heads, checked to be what :func:`decoded` can decode.

    Raises:
        RunError: the codec failed or broke its contract.
    """
    who = f"codec {type(codec).__name__} in layer {heads.layer}"
    with blamed(who), torch.no_grad():
        found: object = codec.encode(heads)
    count, slots, key_dim = heads.keys.shape
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(part, Tensor) and part.shape[:1] == (count,)
        for name, part in found.items()
    ):
        raise RunError(f"{who} encoded {count} heads as no mapping of names to tensors of {count} rows")
    tensors = {name: _own(part) for name, part in found.items()}
    dims = (key_dim, heads.values.shape[2])
    coded = CodedHeads(tensors, heads.layer, slots, dims, heads.keys.dtype)
    if not all(bool(part.isfinite().all()) for part in decoded(codec, coded)):
        raise RunError(f"{who} decodes keys or values that are NaN or infinite")
    return coded


def decoded(codec: Codec, heads: CodedHeads) -> tuple[Tensor, Tensor]:
    """Keys and values of coded heads.

    Raises:
        RunError: the codec failed, or they have other shapes than before.
    """
    who = f"codec {type(codec).__name__} in layer {heads.layer}"
    with blamed(who), torch.no_grad():
        found: object = codec.decode(heads)
    count = len(next(iter(heads.tensors.values())))
    shapes = [(count, heads.slots, dim) for dim in heads.dims]
    parts = found if isinstance(found, tuple) else ()
    if [getattr(part, "shape", None) for part in parts] != shapes or any(p.dtype != heads.dtype for p in parts):
        raise RunError(f"{who} decoded no keys and values of the shapes {shapes} and of {heads.dtype}")
    return parts[0], parts[1]


def _own(part: Tensor) -> Tensor:
    """The tensor in memory of its own, so that what it holds is what it needs."""
    part = part.detach()
    whole = part.is_contiguous() and part.untyped_storage().nbytes() == part.numel() * part.element_size()
    return part if whole else part.clone(memory_format=torch.contiguous_format)
