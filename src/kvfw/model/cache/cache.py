"""A transformers cache whose layers hold KVStates: the number of tokens seen and of slots stored differ."""

import copy
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from kvfw.core.state.state import KVState
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.cache.layer import CompressedLayer, OpenBlock
from kvfw.model.cache.report import CacheReport, LayerReport
from kvfw.model.inspect.adapters import NO_ADAPTERS


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
        #: Adapters that were active when its first tokens were read.
        self.adapters = NO_ADAPTERS
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

    def copy(self) -> "CompressedCache":
        """A cache of the same content that goes on by itself, inside the same block and after it.

        For many questions on one context. Slots are shared until one of the two compresses again, so a copy costs no
        memory by itself.

        Raises:
            UnsupportedError: an interrupted forward left the cache torn.
        """
        self.check_whole()
        copied = copy.copy(self)
        copied.made_for = self.made_for
        copied.compress_s = list(self.compress_s)
        # transformers' own layers change their tensors in place.
        copied.layers = [
            layer.copy() if isinstance(layer, CompressedLayer) else copy.deepcopy(layer) for layer in self.layers
        ]
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompressedCache":
        copied = self.copy()
        copied.layers = copy.deepcopy(copied.layers, memo)
        return copied

    @property
    def block(self) -> OpenBlock | None:
        """The last block it was used in, or the cache it is a copy of."""
        return next((layer.block for layer in self.compressed_layers()), None)

    @property
    def seen_at(self) -> Tensor | None:
        """Positions ``[B, seen]`` of all tokens, -1 for padding and hidden ones; None where not all are known."""
        first = self.compressed_layers()[0].captured
        return first.seen_at if first.seen_at is not None and first.seen_at.shape[1] == first.seen else None

    def enter(self, block: OpenBlock) -> None:
        """Belongs to a block from now on."""
        for layer in self.compressed_layers():
            layer.block = block

    def check_whole(self) -> None:
        """Refuses a cache whose layers do not hold the same tokens.

        Raises:
            UnsupportedError: a forward was interrupted between two layers, or layers of several caches were joined.
        """
        ours = self.compressed_layers()
        held = {(layer.get_seq_length(), 0 if layer.keys is None else len(layer.keys)) for layer in self.layers}
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

    def activate_past_recording(self) -> None:
        """Refused: how transformers announces that it will crop.

        Raises:
            UnsupportedError: always.
        """
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
