"""Attend: the model's own attention function, with the right mask for compressed layers."""

from typing import Any

from torch import Tensor, nn

from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.cache.masks import layer_mask
from kvfw.model.compat.routing import model_attention


def attended(
    base: str,
    layer: CompressedLayer,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention over a layer of ours: by the model's own mask until it is compressed, then by that of its slots.

    FlashAttention takes no additive mask, so masked layers then run on sdpa; where the logits are capped or heads
    have sinks of their own, which sdpa refuses or ignores, on eager attention.

    Args:
        base: name of the model's own attention implementation.
        layer: the layer, whose new tokens have been placed.
        module, query, key, value, attention_mask, kwargs: as attention functions are given them.

    Raises:
        UnsupportedError: attention adds a bias made for tokens in their places.
    """
    if kwargs.get("position_bias") is not None:
        raise UnsupportedError(
            f"{type(module).__name__} adds a bias to its attention logits that is made for every token of the "
            "prompt in its place; after compression slots have other places, so kvfw cannot stand in for it"
        )
    if layer.compressed:
        attention_mask = layer_mask(layer.state, query.shape[2], query, plain=layer.storage.plain)
        if attention_mask is not None and base.startswith(("flash", "flex")):
            special = kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None
            base = "eager" if special else "sdpa"
    return model_attention(module, base)(module, query, key, value, attention_mask, **kwargs)
