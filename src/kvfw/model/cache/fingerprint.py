"""Fingerprints of models, which show whether a cache belongs to a model."""

import hashlib
from typing import Any

import torch
from transformers import PreTrainedModel

from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.inspect.adapters import NO_ADAPTERS, active_adapters, tuned_modules
from kvfw.model.inspect.layers import text_config
from kvfw.model.inspect.support import fresh_layers

Fingerprint = dict[str, Any]

#: Weights sampled per parameter, enough to notice training, rounding or another seed.
SAMPLES = 16


def fingerprint(model: PreTrainedModel) -> Fingerprint:
    """Architecture, shape, rotation, precision, adapters and a hash of sampled weights, as JSON values.

    Sampling takes milliseconds, and can miss a change of a few single weights.

    Raises:
        UnsupportedError: weights are offloaded and cannot be sampled.
    """
    return {
        **shape(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "adapters": active_adapters(model),
        "weights": _sampled(model),
    }


def shape(model: PreTrainedModel) -> Fingerprint:
    """The part of a fingerprint that the configuration alone decides."""
    config = text_config(model)
    heads = config.num_attention_heads
    return {
        "architecture": type(model).__name__,
        "layers": [type(layer).__name__ for layer in fresh_layers(model.config)],
        "heads": heads,
        "KV heads": getattr(config, "num_key_value_heads", None) or heads,
        "head size": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "sliding window": getattr(config, "sliding_window", None),
        "RoPE": _plain(getattr(config, "rope_parameters", None)),
    }


def made_by(cache: CompressedCache, model: PreTrainedModel) -> Fingerprint:
    """The fingerprint of the model that made a cache, with the adapters that were active then."""
    return {**fingerprint(model), "adapters": cache.adapters}


def differences(theirs: Fingerprint, ours: Fingerprint) -> str:
    """The differences in words, empty without any; weights are compared only if all else is equal."""
    theirs = {"adapters": NO_ADAPTERS} | theirs  # older saved caches do not mention adapters
    names = [name for name in ours if name != "weights" and theirs.get(name) != ours[name]]
    said = [f"{name} {_short(theirs.get(name))} there, {_short(ours[name])} here" for name in names]
    if not said and theirs.get("weights") != ours["weights"]:
        return "the same architecture, but other weights"
    return "; ".join(said)


def check_same_model(cache: CompressedCache, model: PreTrainedModel) -> None:
    """Refuses a cache that another model made, or this one with other adapters.

    Raises:
        UnsupportedError: naming what differs; or the model that made it is no longer known.
    """
    if cache.made_for is None:
        raise UnsupportedError(
            "the model that made this cache is not in memory any more, so nothing says that it was this one; keep it, "
            "or save the cache (kvfw.save_cache) while it is there and load it for this one"
        )
    if cache.made_for is model:
        said = differences({"adapters": cache.adapters}, {"adapters": active_adapters(model), "weights": None})
    else:
        said = differences(made_by(cache, cache.made_for), fingerprint(model))
    if said:
        raise UnsupportedError(f"this cache was made by another model: {said}. Use that one, or run the prompt again")


def _plain(value: Any) -> Any:
    """Settings as JSON returns them: keys are strings, tuples are lists."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    if isinstance(value, list) and len(set(map(str, value))) == 1:
        return f"{len(value)} × {value[0]}"
    return str(value)


@torch.no_grad()
def _sampled(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, module in tuned_modules(model):
        digest.update(f"{name} {getattr(module, 'scaling', None)}".encode())
    for name, weight in sorted(model.named_parameters()):
        if weight.is_meta:
            raise UnsupportedError(
                f"weights of this model are offloaded ({name}), so kvfw cannot tell it from other models, as saving, "
                "loading and moving a cache to another model object need; load it without offloading, or go on inside "
                "one block"
            )
        flat = weight.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLES)
        digest.update(name.encode())
        digest.update(flat[::step][:SAMPLES].float().cpu().numpy().tobytes())
    return digest.hexdigest()
