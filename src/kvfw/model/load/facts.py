"""What kvfw sees of a model, from its configuration alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kvfw.core.state.rope import Layout
from kvfw.errors import UnsupportedError
from kvfw.model.inspect.layers import Anatomy, anatomy
from kvfw.model.inspect.skeleton import skeleton
from kvfw.model.inspect.support import causal_class, check_kind, check_supported, fresh_layers
from kvfw.model.load.load import OpenModel
from kvfw.model.load.sources import lone_config, resolve_model


@dataclass(frozen=True)
class RopeFacts:
    """How a layer rotates its keys.

    Args:
        type: transformers' name of the kind of RoPE: default, linear, dynamic, yarn, longrope, llama3, ...
        layout: which coordinates form a pair.
        rotary_dim: number of leading coordinates of a key that are rotated.
        base: of the frequencies; None where the configuration names none.
        attention_factor: factor on the rotated coordinates.
        settings: further settings of the type.
    """

    type: str
    layout: Layout
    rotary_dim: int
    base: float | None
    attention_factor: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class LayerFacts:
    """One attention layer.

    Args:
        attention: ``full`` or ``sliding``; sliding-window layers are left as they are.
        window: tokens a sliding window holds.
        kv_heads: number of KV heads.
        key_dim, value_dim: size of a head's key and value.
        rope: None where the layer does not rotate keys.
        softcap: cap of the attention logits.
        sinks: whether heads have attention sinks of their own.
    """

    attention: Literal["full", "sliding"]
    window: int | None
    kv_heads: int
    key_dim: int
    value_dim: int
    rope: RopeFacts | None
    softcap: float | None
    sinks: bool

    @property
    def compressed(self) -> bool:
        """Whether compression touches the layer."""
        return self.attention == "full"


@dataclass(frozen=True)
class ModelFacts:
    """A model as kvfw sees it.

    Args:
        model: its name as given.
        model_type: transformers' name of the family.
        architecture: class of the model; None where it is not known.
        dtype: of keys and values, for the figures in bytes.
        query_heads: number of query heads; None where the configuration does not say.
        positions: most tokens of prompt and response together; None where there is no limit.
        layers: empty for a refused model.
        refused: why kvfw cannot compress it; None if it can.
    """

    model: str
    model_type: str
    architecture: str | None
    dtype: str
    query_heads: int | None
    positions: int | None
    layers: tuple[LayerFacts, ...]
    refused: str | None

    def bytes_per_token(self, attention: Literal["full", "sliding"]) -> int:
        """Bytes of keys and values per token, over all layers of a kind."""
        size = getattr(torch, self.dtype).itemsize
        numbers = (x.kv_heads * (x.key_dim + x.value_dim) for x in self.layers if x.attention == attention)
        return int(sum(numbers) * size)


def inspect_model(name: str, *, dtype: str = "auto", trust_remote_code: bool = False) -> ModelFacts:
    """Inspects a model without loading its weights.

    Args:
        name: an embedded model's name, a folder, a hub id; or a file or folder with only a configuration.
        dtype: float32, bfloat16 or float16; auto: the checkpoint's.
        trust_remote_code: let code that comes with the model run.

    Raises:
        UnknownNameError, FetchError: no such model, or it cannot be fetched.
        UnsupportedError: its configuration cannot be read.
    """
    opened = OpenModel(lone_config(name) or resolve_model(name), trust_remote_code=trust_remote_code)
    return inspect_config(opened.any_config, name, dtype=dtype, trust_remote_code=trust_remote_code)


def inspect_config(
    config: PreTrainedConfig, name: str, *, dtype: str = "auto", trust_remote_code: bool = False
) -> ModelFacts:
    """Inspects the model of a configuration; arguments as for :func:`inspect_model`."""
    found, called = causal_class(config), f"{name!r} ({config.model_type})"
    text: Any = config.get_text_config(decoder=True)
    stored = str(getattr(text, "dtype", None) or "float32").removeprefix("torch.")
    layers: tuple[LayerFacts, ...] = ()
    refused = None
    try:
        check_kind(config, called)
        check_supported(config, called, found)
        layers = layer_facts(skeleton(config, called, trust_remote_code=trust_remote_code))
    except UnsupportedError as error:
        refused = str(error)
    named: list[str] = getattr(config, "architectures", None) or []
    return ModelFacts(
        model=name,
        model_type=str(config.model_type),
        architecture=found.__name__ if found is not None else next(iter(named), None),
        dtype=stored if dtype == "auto" else dtype,
        query_heads=getattr(text, "num_attention_heads", None),
        positions=getattr(text, "max_position_embeddings", None),
        layers=layers,
        refused=refused,
    )


def layer_facts(model: PreTrainedModel) -> tuple[LayerFacts, ...]:
    """The facts of every layer of a model.

    Raises:
        UnsupportedError: an architecture kvfw cannot compress correctly.
    """
    seen = anatomy(model)
    return tuple(
        LayerFacts(
            attention="full" if part.compressible else "sliding",
            window=None if part.compressible else getattr(fresh, "sliding_window", None),
            kv_heads=part.kv_heads,
            key_dim=part.key_dim,
            value_dim=part.value_dim,
            rope=_rope(part.index, seen),
            softcap=part.softcap,
            sinks=part.sinks,
        )
        for part, fresh in zip(seen.layers, fresh_layers(model.config), strict=True)
    )


def _rope(index: int, seen: Anatomy) -> RopeFacts | None:
    rope = seen.rotary.read(index)
    if rope is None:
        return None
    settings = dict(seen.rotary.settings(index))
    base = settings.pop("rope_theta", None)
    return RopeFacts(
        type=str(settings.pop("rope_type", "default")),
        layout=rope.layout,
        rotary_dim=rope.rotary_dim,
        base=None if base is None else float(base),
        attention_factor=rope.scaling,
        settings={key: value for key, value in settings.items() if value is not None},
    )
