"""A transformers cache whose layers hold KVStates: the number of tokens seen and of slots stored differ."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import BudgetError, UnsupportedError


class CompressedLayer(CacheLayerMixin):
    """The slots of one layer.

    ``get_seq_length`` is the number of tokens seen, padding included, as everywhere in transformers;
    ``get_mask_sizes`` speaks of the slots stored. Both agree until the layer is compressed.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' own has no annotations
        self.attached = False
        self._clear()

    def _clear(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False
        self.seen = 0
        self.compressed = False
        #: True while every slot of every head is real and unbiased: attention then needs no bias.
        self.plain = True
        self._state: KVState | None = None
        #: Real tokens seen by every row, int64 [B].
        self.tokens: Tensor | None = None
        self._next: Tensor | None = None
        self._unplaced = 0
        #: The last queries ``[B, H, w, D]`` and their positions ``[B, w]``, kept while a compression may need them.
        self.window: tuple[Tensor, Tensor] | None = None
        #: Attention each slot received so far ``[B, Hkv, N]``, by distance, kept while a compression may need it.
        self.column_sums: dict[int, Tensor] = {}
        #: Slots for the middle of every row and head that compression while decoding goes down to, int64 [B, Hkv].
        self.standing: Tensor | None = None
        #: Tokens seen at the last compression.
        self.compressed_at = 0
        #: Inverse frequencies the stored keys were rotated with, known from the first compression on.
        self.inv_freq: Tensor | None = None

    @classmethod
    def of_state(cls, state: KVState, seen: int) -> "CompressedLayer":
        """A layer that holds the compressed state of a prompt of ``seen`` tokens, padding included."""
        layer = cls()
        layer.seen = seen
        layer.lazy_initialization(state.keys, state.values)
        layer.tokens = torch.full((state.keys.shape[0],), seen, device=state.keys.device)
        layer._next = layer.tokens.to(torch.float32)
        layer.hold(state)
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Remembers device and dtype."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.tokens = torch.zeros(key_states.shape[0], dtype=torch.int64, device=self.device)
        self._next = torch.zeros(key_states.shape[0], dtype=torch.float32, device=self.device)
        self.is_initialized = True

    @property
    def state(self) -> KVState:
        """The stored slots.

        Raises:
            UnsupportedError: nothing is stored yet.
        """
        if self._state is None:
            raise UnsupportedError("this layer of the cache is empty: run the prompt through the model first")
        return self._state

    def hold(self, state: KVState) -> None:
        """Replaces what is stored by a compressed state; nothing of the old one is referred to any more.

        The next token's position stays what it was: the last slots kept need not be the last tokens seen.
        """
        self._state = state
        self.keys, self.values = state.keys, state.values
        self.compressed, self.compressed_at = True, self.seen
        self.plain = bool((state.valid & (state.bias == 0)).all())

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends new tokens and returns all stored keys and values.

        Inside a session their positions are added by :meth:`place`, once attention knows them.

        Raises:
            UnsupportedError: the cache is used outside ``attach`` where plain attention would be silently wrong, or
                the model's attention does not go through the attention interface.
        """
        if self._unplaced:
            raise UnsupportedError(
                "a layer updated its cache without attending through kvfw; this model's attention cannot be observed"
            )
        if not self.attached and not self.plain:
            raise UnsupportedError(
                "this cache has empty or biased slots, which plain attention would ignore; use it inside kvfw.attach"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys is None or self.values is None:
            self.keys, self.values = _own(key_states), _own(value_states)
        else:
            self.keys = torch.cat((self.keys, key_states), dim=2)
            self.values = torch.cat((self.values, value_states), dim=2)
        self.seen += key_states.shape[2]
        self._unplaced = key_states.shape[2]
        if not self.attached:
            self.place(self.next_positions(self._unplaced), None)
        return self.keys, self.values

    def next_positions(self, count: int) -> Tensor:
        """Positions ``[B, count]`` that follow the last ones, for models that do not say their own."""
        assert self._next is not None
        return self._next[:, None] + torch.arange(count, device=self.device, dtype=torch.float32)

    def place(self, positions: Tensor, real: Tensor | None) -> None:
        """Gives the tokens just appended their positions.

        Args:
            positions: ``[B, n]`` float32.
            real: ``[B, n]`` bool, False for padding; None if all are real.
        """
        count, self._unplaced = self._unplaced, 0
        assert self.keys is not None
        assert self.values is not None
        assert self.tokens is not None
        real_tokens = torch.ones_like(positions, dtype=torch.bool) if real is None else real
        new = exact_state(self.keys[:, :, -count:], self.values[:, :, -count:], positions, real_tokens)
        old = self._state
        self._state = KVState(
            keys=self.keys,
            values=self.values,
            positions=new.positions if old is None else torch.cat((old.positions, new.positions), dim=2),
            mass=new.mass if old is None else torch.cat((old.mass, new.mass), dim=2),
            bias=new.bias if old is None else torch.cat((old.bias, new.bias), dim=2),
        )
        self.tokens = self.tokens + real_tokens.sum(1)
        self._next = positions[:, -1] + 1
        if real is not None and self.plain:
            self.plain = bool(real.all())

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.seen

    @property
    def stored(self) -> int:
        """Slots stored per head, empty ones included."""
        return self._state.width if self._state is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots that attention will see after more tokens, and where the first of them stands for the mask.

        New queries stand where the tokens seen end, so the slots are moved up to there: a new token then sees all
        stored slots, and nothing that comes after it.
        """
        return self.stored + query_length, self.seen - self.stored

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No maximum; transformers before 5.13 asks under this name."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Refused.

        Raises:
            UnsupportedError: always; a compressed cache cannot be rolled back.
        """
        raise UnsupportedError(
            "a compressed cache cannot be cropped, so assisted (speculative) decoding does not work with it; "
            "generate without an assistant model"
        )

    def reset(self) -> None:
        """Forgets everything."""
        self._clear()

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._state is None:
            return
        assert self.tokens is not None
        assert self._next is not None
        state = self._state
        self._state = KVState(
            keys=change(state.keys),
            values=change(state.values),
            positions=change(state.positions),
            mass=change(state.mass),
            bias=change(state.bias),
        )
        self.keys, self.values = self._state.keys, self._state.values
        self.tokens, self._next = change(self.tokens), change(self._next)
        if self.window is not None:
            self.window = change(self.window[0]), change(self.window[1])
        if self.standing is not None:
            self.standing = change(self.standing)
        self.column_sums = {distance: change(sums) for distance, sums in self.column_sums.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects rows for beam search."""
        self._map_rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row."""
        self._map_rows(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the given rows."""
        self._map_rows(lambda x: x[indices.to(x.device), ...])


def _own(x: Tensor) -> Tensor:
    """The tensor, copied where it is a view of something larger, such as a fused projection's output.

    A view would keep all of that alive.
    """
    return (
        x
        if x.untyped_storage().nbytes() == x.numel() * x.element_size()
        else x.clone(memory_format=torch.contiguous_format)
    )


@dataclass(frozen=True)
class LayerReport:
    """What one layer holds: slots of every KV head, row by row; bytes of keys and values, and of the rest; seconds."""

    layer: int
    slots: tuple[int, ...]
    kv_bytes: int
    overhead_bytes: int
    compress_s: float
    compressed: bool


@dataclass(frozen=True)
class CacheReport:
    """What a cache holds. Print it for a table."""

    seen_tokens: int
    layers: tuple[LayerReport, ...]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values over all layers."""
        return sum(layer.kv_bytes for layer in self.layers)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of positions, masses and biases over all layers."""
        return sum(layer.overhead_bytes for layer in self.layers)

    @property
    def compress_s(self) -> float:
        """Seconds spent compressing."""
        return sum(layer.compress_s for layer in self.layers)

    def __str__(self) -> str:
        lines = [f"{'layer':>5}  {'slots per KV head':<24} {'KV MB':>8} {'overhead MB':>12} {'compress s':>11}"]
        for layer in self.layers:
            found = sorted(set(layer.slots))
            slots = " ".join(map(str, found)) if len(found) <= 4 else f"{found[0]} to {found[-1]}"
            slots += "" if layer.compressed else "  (not compressed)"
            lines.append(
                f"{layer.layer:>5}  {slots:<24} {layer.kv_bytes / 2**20:>8.3f} {layer.overhead_bytes / 2**20:>12.3f} "
                f"{layer.compress_s:>11.4f}"
            )
        lines.append(
            f"total  {self.seen_tokens} tokens seen{'':<12} {self.kv_bytes / 2**20:>8.3f} "
            f"{self.overhead_bytes / 2**20:>12.3f} {self.compress_s:>11.4f}"
        )
        return "\n".join(lines)


class CompressedCache(Cache):
    """A cache for ``model.generate`` whose layers may each hold another number of slots.

    Sliding-window layers stay transformers' own. ``layers[i].keys`` are the stored slots.
    """

    layers: list[CacheLayerMixin]  # type: ignore[assignment]  # transformers admits more kinds, this cache does not

    def __init__(self, layers: Sequence[CacheLayerMixin]) -> None:
        super().__init__(layers=list(layers))
        #: Seconds spent compressing each layer.
        self.compress_s = [0.0] * len(self.layers)
        #: Tokens seen when the prompt or turn that was announced ends; None where none was.
        self.ends_at: int | None = None
        self._made_for: weakref.ref[PreTrainedModel] | None = None

    @property
    def made_for(self) -> PreTrainedModel | None:
        """The model whose keys and values these are, if it is known and still there."""
        return self._made_for() if self._made_for is not None else None

    @made_for.setter
    def made_for(self, model: PreTrainedModel | None) -> None:
        # Not a reference: a cache does not keep a model's weights in memory.
        self._made_for = weakref.ref(model) if model is not None else None

    def __getstate__(self) -> dict[str, Any]:
        """Without the model, which no copy in a file could refer to."""
        return self.__dict__ | {"_made_for": None}

    def expect(self, tokens: int) -> None:
        """Announces how long the next prompt or turn is, so that it may be fed in any number of forwards.

        It is compressed once, after its last token; without this, every forward of more than one token counts as a
        whole turn.

        Args:
            tokens: its length, padding included; tokens already in the cache do not count.

        Raises:
            BudgetError: not a whole number of tokens, 1 or more.
        """
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise BudgetError(f"a turn of {tokens} tokens was announced; it is a whole number of tokens, 1 or more")
        self.ends_at = self.get_seq_length() + tokens

    def compressed_layers(self) -> list[CompressedLayer]:
        """The layers that compression touches."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Slots that attention will see in a layer, and where they start.

        Raises:
            UnsupportedError: outside ``attach`` transformers makes one mask for all layers, and these differ in slots.
        """
        layers = self.compressed_layers()
        if not all(layer.attached for layer in layers) and len({layer.stored for layer in layers}) > 1:
            raise UnsupportedError(
                "the layers of this cache hold different numbers of slots, for which plain attention has no mask; use "
                "it inside kvfw.attach"
            )
        sizes: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx)
        return sizes

    def reset(self) -> None:
        """Forgets everything."""
        for layer in self.layers:
            layer.reset()
            # transformers before 5.18 fills a sliding window with zeros, and goes on after them.
            layer.keys = layer.values = None
            layer.is_initialized = False
        self.compress_s = [0.0] * len(self.layers)
        self.ends_at = None

    def state(self, layer: int) -> KVState:
        """The slots of one layer.

        Raises:
            UnsupportedError: the layer is a sliding-window one, or empty.
        """
        found = self.layers[layer]
        if not isinstance(found, CompressedLayer):
            raise UnsupportedError(f"layer {layer} is a sliding-window layer, which kvfw leaves as it is")
        return found.state

    def held_bytes(self) -> int:
        """Bytes of keys and values over all layers, now."""
        return sum(
            layer.state.kv_bytes if isinstance(layer, CompressedLayer) else _storage_bytes(layer)
            for layer in self.layers
            if layer.keys is not None
        )

    def report(self) -> CacheReport:
        """Slots and bytes per layer and the seconds spent compressing."""
        return CacheReport(self.get_seq_length(), tuple(self._layer_report(i) for i in range(len(self.layers))))

    def _layer_report(self, index: int) -> LayerReport:
        layer = self.layers[index]
        if isinstance(layer, CompressedLayer) and layer.stored:
            slots = tuple(layer.state.valid.sum(-1).flatten().tolist())
            state = layer.state
            return LayerReport(
                index, slots, state.kv_bytes, state.overhead_bytes, self.compress_s[index], layer.compressed
            )
        if layer.keys is None or layer.values is None:
            return LayerReport(index, (), 0, 0, 0.0, False)
        slots = (layer.keys.shape[2],) * (layer.keys.shape[0] * layer.keys.shape[1])
        return LayerReport(index, slots, _storage_bytes(layer), 0, 0.0, False)


def _storage_bytes(layer: CacheLayerMixin) -> int:
    """Bytes that a sliding-window layer's keys and values hold, also where they are views of more."""
    return sum(part.untyped_storage().nbytes() for part in (layer.keys, layer.values) if part is not None)
