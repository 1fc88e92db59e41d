"""What kvfw sees of a model: its attention layers, and which of them can be compressed."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kvfw.errors import UnsupportedError
from kvfw.model.inspect.probe import Probed
from kvfw.model.inspect.rotary import RotaryReader, rotary_reader
from kvfw.model.inspect.support import check_supported, compressible

#: What families call the output projection of their attention.
PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "wo", "proj")


@dataclass(frozen=True)
class Layer:
    """One attention layer.

    Args:
        index: its place in the model and in the cache.
        kv_heads: number of KV heads.
        compressible: False for sliding-window layers, which are left as they are.
        output_projection: weight ``[out, H * Dv]`` of the output projection; None where kvfw cannot find or read it.
        key_dim, value_dim: size of a head's key and value.
        softcap: cap of the attention logits, where it has one.
        sinks: whether its heads have attention sinks of their own.
    """

    index: int
    kv_heads: int
    compressible: bool
    output_projection: Tensor | None
    key_dim: int
    value_dim: int
    softcap: float | None
    sinks: bool


@dataclass(frozen=True)
class Anatomy:
    """The attention layers of a model and how it rotates keys."""

    layers: tuple[Layer, ...]
    rotary: RotaryReader

    @property
    def compressible(self) -> tuple[Layer, ...]:
        """The layers that compression touches."""
        return tuple(layer for layer in self.layers if layer.compressible)

    def check_projections(self, name: str) -> None:
        """For parts that need the output projection of every compressible layer.

        Raises:
            UnsupportedError: a layer's cannot be found; ``name`` is what the error calls the model.
        """
        if missing := [str(layer.index) for layer in self.compressible if layer.output_projection is None]:
            raise UnsupportedError(
                f"this composition needs the attention's output projection, and layers {', '.join(missing)} of {name} "
                f"have none that kvfw can read: a matrix in memory, called {', '.join(PROJECTIONS)}, with a column per "
                "coordinate of the heads' outputs. Use a composition without Needs(projection=True)"
            )


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the language model inside ``model``."""
    return model.config.get_text_config(decoder=True)


def anatomy(model: PreTrainedModel) -> Anatomy:
    """Looks at a model.

    Raises:
        UnsupportedError: an architecture kvfw cannot compress correctly, named with the reason.
    """
    name = type(model).__name__
    slots = check_supported(model.config, name, type(model))
    modules = attention_modules(model)
    if len(modules) != len(slots):
        raise UnsupportedError(
            f"{name} has {len(slots)} cache layers but {len(modules)} attention layers that kvfw can see"
        )
    rotary, probed = rotary_reader(model, modules)
    shapes = [
        _configured(module.config) if seen is None else seen for module, seen in zip(modules, probed, strict=True)
    ]
    layers = tuple(
        Layer(
            index=i,
            kv_heads=shape.kv_heads,
            compressible=compressible(slot, name, i),
            output_projection=_output_projection(module, shape.value_dim),
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            softcap=shape.softcap,
            sinks=shape.sinks,
        )
        for i, (slot, module, shape) in enumerate(zip(slots, modules, shapes, strict=True))
    )
    return Anatomy(layers, rotary)


def _output_projection(attention: Any, value_dim: int) -> Tensor | None:
    """The weight, as ``[out, in]``, of the named module that takes the outputs of all query heads side by side."""
    width = int(attention.config.num_attention_heads) * value_dim
    for module in filter(None, (getattr(attention, name, None) for name in PROJECTIONS)):
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not weight.is_meta:
            upright = weight.T if isinstance(module, Conv1D) else weight
            return upright if upright.shape[1] == width else None
    return None


def _configured(config: Any) -> Probed:
    """What the configuration says of a layer that cannot be asked."""
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return Probed(rotates=True, kv_heads=kv_heads, key_dim=dim, value_dim=dim, softcap=None, sinks=False)


def attention_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """Self-attention modules in layer order: those that know their layer and are called attention."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and "Attention" in type(module).__name__:
            found.setdefault(index, module)
    return tuple(found[index] for index in sorted(found))
