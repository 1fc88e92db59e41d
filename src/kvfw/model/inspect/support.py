"""Checks whether kvfw can compress a model, from its configuration alone, before any weights load."""

from typing import Any, cast

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvfw.errors import UnsupportedError
from kvfw.model.compat.config_errors import made_by_transformers
from kvfw.model.compat.versions import layer_configs

#: Why cache layers of transformers that do not store keys and values per token cannot be compressed.
_RECURRENT = "keeps a recurrent state of fixed size (linear attention, Mamba, RWKV) in place of keys and values"
_REASONS = {
    "LinearAttentionLayer": _RECURRENT,
    "LinearAttentionAndFullAttentionLayer": f"{_RECURRENT} beside its attention",
    "LinearAttentionAndSlidingWindowAttentionLayer": f"{_RECURRENT} beside its attention",
    "DynamicIndexedLayer": "looks up the tokens it attends to in an index of its own",
    "DummyLayer": "has no keys of its own: it reads those of another layer",
}


def check_supported(
    config: PreTrainedConfig, name: str, model_class: type[PreTrainedModel] | None = None
) -> tuple[CacheLayerMixin, ...]:
    """The empty cache layers of a model, one per layer, if kvfw supports all of them.

    ``config`` is the whole model's, ``name`` its name in errors, ``model_class`` its class, where it is known.

    Raises:
        UnsupportedError: an architecture kvfw cannot compress correctly, or a configuration transformers cannot use.
    """
    with made_by_transformers(name):
        text: Any = config.get_text_config(decoder=True)
    _refuse_encoder_decoder(config, name)
    count = getattr(text, "num_hidden_layers", None)
    if isinstance(count, int) and count < 1:
        raise UnsupportedError(
            f"{name} has no layers: num_hidden_layers is {count} and must be 1 or more; look at its config.json"
        )
    with made_by_transformers(name):
        configs = layer_configs(text)
    if any(getattr(layer, "kv_lora_rank", None) for layer in configs):
        raise UnsupportedError(
            f"{name} has multi-head latent attention (MLA): keys are expanded from a shared latent vector and rotate "
            "other coordinates than the leading ones, which kvfw cannot undo"
        )
    if getattr(model_class, "_is_stateful", False) and not getattr(model_class, "_supports_attention_backend", False):
        raise UnsupportedError(f"{name} {_RECURRENT}, which kvfw cannot compress")
    if model_class is not None and not getattr(model_class, "_supports_attention_backend", False):
        raise UnsupportedError(f"{name} does not use transformers' attention interface, so kvfw cannot see its queries")
    with made_by_transformers(name):
        layers = fresh_layers(config)
    kinds = [compressible(layer, name, index) for index, layer in enumerate(layers)]
    if not any(kinds):
        raise UnsupportedError(
            f"every layer of {name} has a sliding window and is left as it is, so there is nothing to compress"
        )
    return layers


def check_is_model(model: object, function: str) -> None:
    """Refuses what is no transformers model.

    Raises:
        UnsupportedError: saying what to pass instead, such as the model inside a wrapper.
    """
    if isinstance(model, PreTrainedModel):
        return
    inside = model.named_modules() if isinstance(model, nn.Module) else ()
    path = next((path for path, part in inside if isinstance(part, PreTrainedModel)), None)
    advice = f"pass .{path} of it" if path else "pass .model of what load_model returns"
    raise UnsupportedError(f"{function} takes a transformers model, not {type(model).__name__}; {advice}")


def check_kind(config: PreTrainedConfig, name: str) -> None:
    """Raises UnsupportedError for anything but a causal language model that transformers knows."""
    _refuse_encoder_decoder(config, name)
    # Encoders load as if they were causal, but attend in both directions and generate nonsense.
    architectures: list[str] = getattr(config, "architectures", None) or []
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    is_encoder = any(a.endswith("ForMaskedLM") for a in architectures) and not getattr(config, "is_decoder", False)
    if is_encoder or (type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code):
        raise UnsupportedError(f"{name} is not a causal language model known to transformers")


def _refuse_encoder_decoder(config: PreTrainedConfig, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"{name} is an encoder-decoder model; kvfw compresses decoder-only models, whose one cache holds the prompt"
        )


def causal_class(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """transformers' causal language model of a configuration; None where the model brings code of its own."""
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    chosen: type[PreTrainedModel] | None = found[0] if isinstance(found, tuple) else found
    return chosen


def fresh_layers(config: PreTrainedConfig) -> tuple[CacheLayerMixin, ...]:
    """One empty cache layer per model layer, as transformers itself would make them."""
    return tuple(cast(list[CacheLayerMixin], DynamicCache(config=config.get_text_config(decoder=True)).layers))


def runs_on(module: nn.Module) -> torch.device:
    """The device a module computes on; for modules that accelerate offloads, the one it moves the weights to."""
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    brought = next((device for hook in hooks if (device := getattr(hook, "execution_device", None)) is not None), None)
    return torch.device(brought) if brought is not None else next(module.parameters(), torch.empty(0)).device


def compressible(layer: CacheLayerMixin, model_name: str, index: int) -> bool:
    """Whether a cache layer of transformers can be replaced by a compressed one.

    Raises:
        UnsupportedError: a kind of layer kvfw does not know.
    """
    if type(layer) is DynamicLayer:
        return True
    if type(layer) is DynamicSlidingWindowLayer:
        return False
    kind = type(layer).__name__
    reason = _REASONS.get(kind, f"caches in a way of its own ({kind})")
    raise UnsupportedError(f"layer {index} of {model_name} {reason}, which kvfw cannot compress")
