"""The attention layers of a model, and which of them can be compressed."""

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
class Layer(Probed):
    """One attention layer.

    Args:
        index: its place in the model and in the cache.
        compressible: False for sliding-window layers, which are left as they are.
        output_projection: weight ``[out, H * Dv]`` of the output projection; None where kvfw cannot find or read it.
    """

    index: int
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

    def check_projections(self, name: str) -> None:
        """Raises UnsupportedError if kvfw cannot read the output projection of a compressible layer of ``name``."""
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
    """Inspects a model's attention layers.

    Raises:
        UnsupportedError: an architecture kvfw cannot compress correctly, with the reason.
    """
    name = type(model).__name__
    slots = check_supported(model.config, name, type(model))
    modules = attention_modules(model)
    if len(modules) != len(slots):
        raise UnsupportedError(
            f"{name} has {len(slots)} cache layers but {len(modules)} attention layers that kvfw can see"
        )
    rotary, probed = rotary_reader(model, modules)
    shapes = [seen or _configured(module.config) for module, seen in zip(modules, probed, strict=True)]
    layers = tuple(
        Layer(
            **vars(shape),
            index=i,
            compressible=compressible(slot, name, i),
            output_projection=_output_projection(module, shape.value_dim),
        )
        for i, (slot, module, shape) in enumerate(zip(slots, modules, shapes, strict=True))
    )
    return Anatomy(layers, rotary)


def _output_projection(attention: Any, value_dim: int) -> Tensor | None:
    """The weight ``[out, in]`` of the module that takes the concatenated outputs of all query heads."""
    width = int(attention.config.num_attention_heads) * value_dim
    for module in filter(None, (getattr(attention, name, None) for name in PROJECTIONS)):
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not weight.is_meta:
            upright = weight.T if isinstance(module, Conv1D) else weight
            return upright if upright.shape[1] == width else None
    return None


def _configured(config: Any) -> Probed:
    """A layer that cannot be probed, as its configuration describes it."""
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return Probed(rotates=True, kv_heads=kv_heads, key_dim=dim, value_dim=dim, softcap=None, sinks=False)


def attention_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """Self-attention modules in layer order: those with a ``layer_idx`` and "Attention" in their class's name."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and "Attention" in type(module).__name__:
            found.setdefault(index, module)
    return tuple(found[index] for index in sorted(found))
