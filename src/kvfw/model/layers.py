"""What kvfw sees of a model: its attention layers, and which of them can be compressed."""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvfw.errors import UnsupportedError
from kvfw.model.rotary import RotaryReader, rotary_reader


@dataclass(frozen=True)
class Layer:
    """One attention layer.

    Args:
        index: its place in the model and in the cache.
        kv_heads: number of KV heads.
        compressible: False for sliding-window layers, which are left as they are.
        output_projection: weight of the output projection, where the model names one.
    """

    index: int
    kv_heads: int
    compressible: bool
    output_projection: Tensor | None


@dataclass(frozen=True)
class Anatomy:
    """The attention layers of a model and how it rotates keys."""

    layers: tuple[Layer, ...]
    rotary: RotaryReader

    @property
    def compressible(self) -> tuple[Layer, ...]:
        """The layers that compression touches."""
        return tuple(layer for layer in self.layers if layer.compressible)


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the language model inside ``model``."""
    return model.config.get_text_config(decoder=True)


def fresh_layers(model: PreTrainedModel) -> list[CacheLayerMixin]:
    """One empty cache layer per model layer, as transformers itself would make them."""
    return cast(list[CacheLayerMixin], DynamicCache(config=text_config(model)).layers)


def anatomy(model: PreTrainedModel) -> Anatomy:
    """Looks at a model.

    Raises:
        UnsupportedError: an architecture kvfw cannot compress correctly, named with the reason.
    """
    name = type(model).__name__
    config = text_config(model)
    if model.config.is_encoder_decoder:
        raise UnsupportedError(f"{name} is an encoder-decoder model; kvfw compresses decoder-only language models")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedError(f"{name} does not use transformers' attention interface, so kvfw cannot see its queries")
    modules = attention_modules(model)
    kinds = [compressible(layer, name) for layer in fresh_layers(model)]
    if len(modules) != len(kinds):
        raise UnsupportedError(
            f"{name} has {len(kinds)} cache layers but {len(modules)} attention layers that kvfw can see"
        )
    if not any(kinds):
        raise UnsupportedError(
            f"every layer of {name} has a sliding window and is left as it is, so there is nothing to compress"
        )
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    layers = tuple(
        Layer(i, heads, kind, getattr(getattr(module, "o_proj", None), "weight", None))
        for i, (module, kind) in enumerate(zip(modules, kinds, strict=True))
    )
    return Anatomy(layers, rotary_reader(model, modules))


def compressible(layer: CacheLayerMixin, model_name: str) -> bool:
    """Whether a cache layer of transformers can be replaced by a compressed one.

    Raises:
        UnsupportedError: a kind of layer kvfw does not know.
    """
    if type(layer) is DynamicLayer:
        return True
    if type(layer) is DynamicSlidingWindowLayer:
        return False
    raise UnsupportedError(f"{model_name} caches with {type(layer).__name__} layers, which kvfw cannot compress")


def attention_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """Self-attention modules in layer order: those that know their layer and are called attention."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and "Attention" in type(module).__name__:
            found.setdefault(index, module)
    return tuple(found[index] for index in sorted(found))
