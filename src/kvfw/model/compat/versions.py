"""What differs between the supported versions of transformers: asked of what is there, not of version numbers."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import Cache

#: What forwards and ``generate`` call the cache: the name since 5.24 first, then the one before.
_NAMES = ("cache", "past_key_values")


def cache_name(model: PreTrainedModel) -> str:
    """What the model's forward, and so ``generate``, calls the cache: ``cache`` or ``past_key_values``."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in parameters), _NAMES[0])


def passed(model: PreTrainedModel, cache: Cache) -> dict[str, Any]:
    """The cache as an argument of the model's forward: ``model(input_ids=ids, **passed(model, cache))``."""
    return {cache_name(model): cache}


def cache_in(arguments: Mapping[str, Any]) -> object:
    """The cache among the arguments of a forward, under either name; None if there is none."""
    return next((arguments[name] for name in _NAMES if name in arguments), None)


def layer_configs(text_config: Any) -> list[Any]:
    """Configurations of a model's layers: one each where transformers makes them; before, one for all."""
    found = getattr(text_config, "per_layer_config", None)
    return list(found) if isinstance(found, Sequence) else [text_config]
