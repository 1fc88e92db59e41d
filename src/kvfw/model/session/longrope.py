"""LongRoPE has one table of frequencies for short inputs and one for long ones; a cache can use only one of them."""

from typing import Any

from transformers import PreTrainedModel

from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.compat.versions import cache_name


def table_switch(config: Any) -> int | None:
    """Number of tokens beyond which a LongRoPE model rotates by another table; None for any other model."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    original = rope.get("original_max_position_embeddings")
    found = original if original is not None else getattr(config, "original_max_position_embeddings", None)
    return int(found if found is not None else config.max_position_embeddings)


def check_switch(switch: int, count: int, layer: CompressedLayer) -> None:
    """Refuses a forward whose ``count`` tokens, just added to ``layer``, take the cache across the switch.

    Raises:
        UnsupportedError: the keys from before were rotated by the other table.
    """
    before = layer.seen - count
    if 0 < before <= switch < layer.seen:
        raise UnsupportedError(
            f"LongRoPE rotates by other frequencies beyond {switch} tokens, so the {before} keys of this cache do not "
            f"fit what follows them. Give a prompt of more than {switch} tokens in one forward, or stay below with "
            "prompt and response together"
        )


def check_dropped(switch: int, count: int, cache: CompressedCache, model: PreTrainedModel) -> None:
    """Refuses a forward of ``count`` tokens without kvfw's cache, which ``generate`` drops where the table changes.

    Raises:
        UnsupportedError: the forward should have gone into ``cache``, the open block's.
    """
    if count > switch >= cache.get_seq_length():
        name = cache_name(model)
        raise UnsupportedError(
            f"LongRoPE rotates by other frequencies beyond {switch} tokens, and this model's generate() drops its "
            "cache there. Run a prompt that is longer through the model before it: model(input_ids[:, :-1], "
            f"{name}=cache), then generate(input_ids, {name}=cache). Other prompts belong outside kvfw.attach"
        )
