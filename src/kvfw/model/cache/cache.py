"""The compressed cache: a transformers cache that stores fewer slots than it has seen tokens."""

import copy
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvfw.core.compose.budget import is_count
from kvfw.core.state.state import KVState
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.cache.layer import CompressedLayer, OpenBlock
from kvfw.model.cache.report import CacheReport, LayerReport
from kvfw.model.inspect.adapters import NO_ADAPTERS


class CompressedCache(Cache):
    """A cache for ``model.generate`` whose layers may hold different numbers of slots.

    Sliding-window layers stay transformers' own. ``layers[i].keys`` are the stored slots, padded where heads differ in
    size: made on demand and not kept.
    """

    layers: list[CacheLayerMixin]  # type: ignore[assignment]  # transformers admits more kinds, this cache does not

    def __init__(self, layers: Sequence[CacheLayerMixin]) -> None:
        super().__init__(layers=list(layers))
        #: Seconds spent compressing each layer.
        self.compress_s = [0.0] * len(self.layers)
        #: Seconds spent on probes.
        self.probe_s = 0.0
        #: Whether layers were compressed only when a whole forward was over, and were held in full until then.
        self.waited = False
        #: Tokens seen at the end of the announced prompt or turn; None without one.
        self.ends_at: int | None = None
        #: Adapters that were active at its first tokens.
        self.adapters = NO_ADAPTERS
        self._made_for: weakref.ref[PreTrainedModel] | None = None

    @property
    def made_for(self) -> PreTrainedModel | None:
        """The model whose keys and values these are, if it is known and still in memory."""
        return self._made_for() if self._made_for is not None else None

    @made_for.setter
    def made_for(self, model: PreTrainedModel | None) -> None:
        # Weak, so that a cache does not keep a model's weights in memory.
        self._made_for = weakref.ref(model) if model is not None else None

    def __getstate__(self) -> dict[str, Any]:
        """Its content without the model, which a pickle cannot refer to."""
        return self.__dict__ | {"_made_for": None}

    def copy(self) -> "CompressedCache":
        """An independent cache of the same content, for many questions on one context, inside the block or after it.

        The two share their slots until one of them changes, so the copy itself costs no memory.

        Raises:
            UnsupportedError: an interrupted forward left layers with different tokens.
        """
        self.check_whole()
        copied = copy.copy(self)
        copied.made_for = self.made_for
        copied.compress_s = list(self.compress_s)
        # transformers' own layers, too, replace their tensors and do not change them.
        copied.layers = [x.copy() if isinstance(x, CompressedLayer) else copy.copy(x) for x in self.layers]
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompressedCache":
        copied = self.copy()
        copied.layers = copy.deepcopy(copied.layers, memo)
        return copied

    @property
    def block(self) -> OpenBlock | None:
        """The last block in which it, or the cache it is a copy of, was used."""
        return next((layer.block for layer in self.compressed_layers()), None)

    @property
    def seen_at(self) -> Tensor | None:
        """Positions ``[B, seen]`` of all tokens, -1 for padding and hidden ones; None where not all are known."""
        first = self.compressed_layers()[0].captured
        return first.seen_at if first.seen_at is not None and first.seen_at.shape[1] == first.seen else None

    def enter(self, block: OpenBlock) -> None:
        """Makes a block its own."""
        for layer in self.compressed_layers():
            layer.block = block

    def check_whole(self) -> None:
        """Refuses a cache whose layers do not hold the same tokens.

        Raises:
            UnsupportedError: a forward was interrupted between two layers, or layers of several caches were joined.
        """
        ours = self.compressed_layers()
        held = {(layer.get_seq_length(), _rows(layer)) for layer in self.layers}
        done = {(layer.captured.compressed, layer.captured.compressed_at, layer.storage.unplaced) for layer in ours}
        if len(held) == len(done) == 1 and not ours[0].storage.unplaced:
            return
        seen = ", ".join(str(layer.get_seq_length()) for layer in self.layers)
        raise UnsupportedError(
            f"the layers of this cache do not hold the same tokens (seen, by layer: {seen}): a "
            "forward was interrupted between them, or they come from several caches. Go on with a copy made before "
            "(cache.copy()) or a saved one, or call cache.reset() and run the prompt again"
        )

    def expect(self, tokens: int) -> None:
        """Announces the length of the next prompt or turn, so that it can be fed in any number of forwards.

        It is compressed once, after its last token. Without this, every forward of more than one token counts as a
        whole turn.

        Args:
            tokens: its length, padding included, tokens already in the cache not included.

        Raises:
            BudgetError: not a whole number of tokens, 1 or more.
        """
        if not is_count(tokens):
            raise BudgetError(f"a turn of {tokens} tokens was announced; it is a whole number of tokens, 1 or more")
        self.ends_at = self.get_seq_length() + tokens

    def compressed_layers(self) -> list[CompressedLayer]:
        """The layers that can be compressed: all but sliding-window layers."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The number of slots that attention will see in a layer, and where they start.

        Raises:
            UnsupportedError: the layers differ in slots, and outside ``attach`` transformers makes one mask for all.
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
            # First, as transformers before 5.18 fills a sliding window, which copies share, with zeros.
            layer.keys = layer.values = None
            layer.is_initialized = False
            layer.reset()
        self.compress_s = [0.0] * len(self.layers)
        self.probe_s, self.waited, self.ends_at = 0.0, False, None

    def activate_past_recording(self) -> None:
        """Raises UnsupportedError, like ``crop``: transformers calls it before it crops."""
        self.compressed_layers()[0].crop(0)

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
            layer.kv_bytes if isinstance(layer, CompressedLayer) else _storage_bytes(layer) for layer in self.layers
        )

    def report(self) -> CacheReport:
        """Slots, bytes and seconds spent compressing, per layer."""
        layers = tuple(self._layer_report(i) for i in range(len(self.layers)))
        return CacheReport(self.get_seq_length(), layers, self.probe_s, self.waited)

    def _layer_report(self, index: int) -> LayerReport:
        layer, spent_s = self.layers[index], self.compress_s[index]
        if isinstance(layer, CompressedLayer) and layer.stored:
            slots = tuple(layer.storage.slots().flatten().tolist())
            return LayerReport(index, slots, layer.kv_bytes, layer.overhead_bytes, spent_s, layer.compressed)
        if layer.keys is None or layer.values is None:
            return LayerReport(index, (), 0, 0, 0.0, False)
        slots = (layer.keys.shape[2],) * (layer.keys.shape[0] * layer.keys.shape[1])
        return LayerReport(index, slots, _storage_bytes(layer), 0, 0.0, False)


def _rows(layer: CacheLayerMixin) -> int:
    if isinstance(layer, CompressedLayer):
        return layer.storage.rows
    return 0 if layer.keys is None else len(layer.keys)


def _storage_bytes(layer: CacheLayerMixin) -> int:
    """Bytes that a sliding-window layer keeps in memory, including what its tensors are views of."""
    return sum(part.untyped_storage().nbytes() for part in (layer.keys, layer.values) if part is not None)
