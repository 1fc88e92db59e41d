"""Attention over compressed layers: the model's own function, with the right mask."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.cache.masks import layer_mask
from kvfw.model.compat.routing import model_attention
from kvfw.model.session.by_head import attention_by_head


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
    """Attention over one layer, with the model's own mask until it is compressed, then with that of its slots.

    Raises:
        UnsupportedError: attention adds a bias that depends on the tokens' original places.
    """
    if kwargs.get("position_bias") is not None:
        raise UnsupportedError(
            f"{type(module).__name__} adds a bias to its attention logits that is made for every token of the "
            "prompt in its place; after compression slots have other places, so kvfw cannot stand in for it"
        )
    if layer.compressed:
        heads = layer.storage.heads()
        if heads is not None and by_head(base, kwargs):
            return attention_by_head(heads, query, kwargs.get("scaling")), None
        if layer.storage.plain and query.shape[2] == 1:
            attention_mask = None
        else:
            state = layer.state
            key, value = state.keys, state.values
            attention_mask = layer_mask(state, query.shape[2], query, plain=layer.storage.plain)
            base = taking_masks(base, kwargs)
    return model_attention(module, base)(module, query, key, value, attention_mask, **kwargs)


def by_head(base: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether plain attention, head by head, is what the model's implementation computes."""
    others = ("softcap", "s_aux", "position_bias")
    if kwargs.get("dropout") or any(kwargs.get(name) is not None for name in others):
        return False
    return taking_masks(base, kwargs) == "sdpa"


def taking_masks(base: str, kwargs: Mapping[str, Any]) -> str:
    """The implementation to use with an additive mask: not flash or flex, which do not take one, but sdpa.

    Where logits are capped or heads have attention sinks, which sdpa refuses or ignores, it is eager.
    """
    if not base.startswith(("flash", "flex")):
        return base
    return "eager" if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None else "sdpa"
