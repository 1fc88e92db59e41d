"""A layer of a transformers cache that stores fewer slots than it has seen tokens."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from kvfw.core.compress.coding import Coder
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.errors import UnsupportedError
from kvfw.model.cache.captured import Captured, NewTokens
from kvfw.model.cache.coded import CodedStorage
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.cache.storage import Storage
from kvfw.model.cache.stored import stored

NOT_CROPPABLE = (
    "a compressed cache cannot be cropped, so assisted decoding and prompt lookup do not work with it; "
    "generate without assistant_model= and prompt_lookup_num_tokens="
)


class OpenBlock:
    """A block in which a model attends through kvfw; its cache and all copies of it share this object."""

    def __init__(self, is_open: bool = True) -> None:
        self.is_open = is_open

    def __deepcopy__(self, memo: object) -> "OpenBlock":
        return self

    def __reduce__(self) -> tuple[type["OpenBlock"], tuple[bool]]:
        """Unpickled blocks are closed."""
        return OpenBlock, (False,)


class CompressedLayer(CacheLayerMixin):
    """The slots of one layer.

    ``get_seq_length`` counts tokens seen, padding included, as everywhere in transformers; ``get_mask_sizes`` counts
    slots stored. Both agree until the layer is compressed.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' own has no annotations
        self.block: OpenBlock | None = None
        self.storage: Storage = PaddedStorage()
        self.reset()

    @classmethod
    def of_state(cls, state: KVState, seen: int | Captured) -> "CompressedLayer":
        """A layer with the compressed state of ``seen`` tokens, padding included, or of those captured."""
        if isinstance(seen, int):
            tokens = torch.full((state.keys.shape[0],), seen, device=state.keys.device)
            seen = Captured(tokens, tokens.to(torch.float32), seen, compressed=True, compressed_at=seen)
        return cls.of_storage(stored(state), seen)

    @classmethod
    def of_storage(cls, storage: Storage, captured: Captured) -> "CompressedLayer":
        """A layer with these compressed slots."""
        layer = cls()
        keys, values, *_ = storage.kv
        layer.lazy_initialization(keys, values)
        layer.storage, layer.captured = storage, captured
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Remembers device and dtype."""
        self.dtype, self.device = key_states.dtype, key_states.device
        nothing = torch.zeros(key_states.shape[0], dtype=torch.int64, device=self.device)
        self.captured = Captured(nothing, nothing.to(torch.float32))
        self.is_initialized = True

    @property
    def attached(self) -> bool:
        """Whether a block is open, in which attention uses this layer's positions and biases."""
        return self.block is not None and self.block.is_open

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]  # read only, where transformers has an attribute
        """Stored keys, padded; where heads differ in size, a new tensor at every access."""
        return self.storage.keys

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """Stored values, likewise."""
        return self.storage.values

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("keys", "values"):
            super().__setattr__(name, value)
        elif value is not None:
            raise UnsupportedError(
                f"the {name} of a compressed layer cannot be assigned: positions, masses and tokens seen belong to "
                "them. Rows are repeated by cache.batch_repeat_interleave(n); prompts that go together are one padded "
                "batch"
            )

    @property
    def state(self) -> KVState:
        """The stored slots, padded; where heads differ in size, a new state at every access.

        Raises:
            UnsupportedError: nothing is stored yet.
        """
        return self.storage.state()

    @property
    def compressed(self) -> bool:
        """Whether it was compressed."""
        return self.captured.compressed

    @property
    def seen(self) -> int:
        """Tokens seen, padding included."""
        return self.captured.seen + self.storage.unplaced

    @property
    def stored(self) -> int:
        """Slots of the widest head."""
        return self.storage.width

    @property
    def kv_bytes(self) -> int:
        """Bytes that keys and values, or their codes, hold in memory, free room included."""
        return _bytes(self.storage.kv)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of positions, masses and biases."""
        return _bytes(self.storage.about)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends new tokens and returns the keys and values that attention is given, all stored ones or the new ones.

        In a session :meth:`place` adds their positions.

        Raises:
            UnsupportedError: outside ``attach``, plain attention would be silently wrong; or the model's attention does
                not use the attention interface.
        """
        if self.storage.unplaced:
            raise UnsupportedError(
                "a layer updated its cache without attending through kvfw; this model's attention cannot be observed"
            )
        if not self.attached and not self.storage.plain:
            raise UnsupportedError(
                "this cache has empty, biased or coded slots, which plain attention would misread; use it inside "
                "kvfw.attach"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        given = self.storage.append(key_states, value_states)
        if not self.attached:
            self.place(NewTokens.after(self.captured, self.next_positions(key_states.shape[2]), None))
            if self.captured.queries is not None or self.captured.sums or self.captured.moments:
                # Nobody captures these tokens, and what leaves them out is of no use to a later block.
                self.captured = replace(self.captured, queries=None, query_positions=None, sums={}, moments={})
        return given

    def next_positions(self, count: int) -> Tensor:
        """Positions ``[B, count]`` after the last ones, for models that do not pass their own."""
        return self.captured.next[:, None] + torch.arange(count, device=self.device, dtype=torch.float32)

    def place(self, new: NewTokens) -> None:
        """Gives the tokens just appended their positions."""
        self.captured = self.captured.placed(new)
        self.storage.place(new.positions, new.real)

    def hold(self, state: KVState, coder: Coder | None = None, obs: Observation | None = None) -> None:
        """Replaces all slots, coded by ``coder``, and drops every reference to the old ones.

        ``obs`` shows the layer's last queries, which some codecs look at.
        """
        self.storage = stored(state) if coder is None else CodedStorage.of(state, coder, obs)

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of slots that attention will see after more tokens, and the mask's position of the first.

        For the mask the slots end where the tokens seen end and new queries begin, so that a new token sees all stored
        slots and nothing after itself.
        """
        return self.stored + query_length, self.seen - self.stored

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    #: The name in transformers before 5.13.
    get_max_cache_shape = get_max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Always raises UnsupportedError: a compressed cache cannot be rolled back."""
        raise UnsupportedError(NOT_CROPPABLE)

    def reset(self) -> None:
        """Forgets everything."""
        self.is_initialized = False
        self.captured = Captured()
        self.storage = PaddedStorage()

    def copy(self) -> "CompressedLayer":
        """An independent layer of the same slots."""
        copied = copy.copy(self)
        copied.storage = self.storage.copy()
        return copied

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.storage.map_rows(change)
        if self.is_initialized:
            self.captured = self.captured.map_rows(change)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects rows for beam search."""
        self._map_rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row."""
        self._map_rows(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the given rows."""
        self._map_rows(lambda x: x[indices.to(x.device), ...])


def _bytes(buffers: Iterable[Tensor]) -> int:
    """Bytes of whole storages, even where a tensor is a view of a part."""
    return sum(part.untyped_storage().nbytes() for part in buffers)
