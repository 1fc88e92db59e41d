"""Differences between the supported versions of transformers, detected by feature, not by version number."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import Cache

#: Names of the cache's argument in forwards and ``generate``: since 5.24, and before.
_NAMES = ("cache", "past_key_values")


def cache_name(model: PreTrainedModel) -> str:
    """The name of the cache's argument in the model's forward and ``generate``: ``cache`` or ``past_key_values``."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in parameters), _NAMES[0])


def passed(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """The cache as an argument of the model's forward: ``model(input_ids=ids, **passed(model, cache))``."""
    return {cache_name(model): cache}


def cache_in(arguments: Mapping[str, Any]) -> object:
    """The cache among the arguments of a forward, under either name; None without one."""
    return next((arguments[name] for name in _NAMES if name in arguments), None)


def layer_configs(text_config: Any) -> list[Any]:
    """The configuration of each layer; from versions of transformers without these, one for all layers."""
    found = getattr(text_config, "per_layer_config", None)
    return list(found) if isinstance(found, Sequence) else [text_config]
