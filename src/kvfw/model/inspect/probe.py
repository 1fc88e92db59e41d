"""Probes what a model's attention layers do to keys, by calling them on one token of zeros."""

import inspect
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.errors import UnsupportedError
from kvfw.model.compat.routing import routed
from kvfw.model.inspect.support import runs_on


@dataclass(frozen=True)
class Probed:
    """What a probe showed of one layer.

    Args:
        rotates: whether it rotates its keys.
        kv_heads: number of KV heads.
        key_dim, value_dim: size of a head's key and value.
        softcap: cap of its attention logits, where it has one.
        sinks: whether its heads have attention sinks of their own.
    """

    rotates: bool
    kv_heads: int
    key_dim: int
    value_dim: int
    softcap: float | None
    sinks: bool


class _KeyProbe:
    """Stands in for attention and records its arguments."""

    def __init__(self) -> None:
        self.seen: tuple[Tensor, Tensor, dict[str, Any]] | None = None
        self._thread = threading.get_ident()

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """All calls of this thread, which makes no other ones meanwhile."""
        return threading.get_ident() == self._thread

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Zeros of the right shape."""
        self.seen = key, value, kwargs
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    def see_padding(self, padding: Tensor | None) -> None:
        """Ignored: one token of zeros has no padding."""


@torch.no_grad()
def probe_layers(
    model: PreTrainedModel, attentions: tuple[nn.Module, ...], table_width: int, rotary_dim: int
) -> tuple[Probed | None, ...]:
    """Probes every layer; None for layers that do not take their rotation as an argument, which rotate.

    Some families rotate in their sliding-window layers only, and only their forward shows it. So each layer is called
    with rotary tables of NaN, which mark what it rotates; a table has a column per rotated coordinate, or per pair.
    Layers with the same plain attributes are probed once.

    Raises:
        UnsupportedError: a layer rotates other coordinates than the leading ones, or cannot be probed.
    """
    answers: dict[object, Probed | None] = {}
    probed: list[Probed | None] = []
    probe = _KeyProbe()
    with routed(model, probe):
        for attention in attentions:
            alike = (type(attention), *_plain_attributes(attention))
            if alike not in answers:
                answers[alike] = _ask(attention, model.dtype, table_width, rotary_dim, probe)
            probed.append(answers[alike])
    return tuple(probed)


def _plain_attributes(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """Everything in which two layers of one class can differ, apart from their weights and their index."""
    kept = (item for item in vars(module).items() if item[0] != "layer_idx")
    return tuple(sorted(item for item in kept if isinstance(item[1], bool | int | float | str | None)))


def _ask(
    attention: nn.Module, dtype: torch.dtype, table_width: int, rotary_dim: int, probe: _KeyProbe
) -> Probed | None:
    if "position_embeddings" not in inspect.signature(attention.forward).parameters:
        return None
    config: Any = attention.config
    device = runs_on(attention)
    hidden = torch.zeros(1, 1, config.hidden_size, dtype=dtype, device=device)
    table = torch.full((1, 1, table_width), torch.nan, dtype=dtype, device=device)
    try:
        # Not called as a module: this must not trigger forward hooks that others registered.
        attention.forward(hidden_states=hidden, position_embeddings=(table, table), attention_mask=None)
    except Exception as error:
        raise UnsupportedError(
            f"{type(attention).__name__} cannot be asked how it rotates keys; it takes more than states, mask and "
            f"rotation ({type(error).__name__}: {error})"
        ) from error
    if probe.seen is None:
        raise UnsupportedError(f"{type(attention).__name__} does not go through transformers' attention interface")
    (key, value, given), probe.seen = probe.seen, None
    turned = key.isnan()[0, 0, 0]
    if bool(turned.any()) and not bool(turned[:rotary_dim].all() and not turned[rotary_dim:].any()):
        raise UnsupportedError(
            f"{type(attention).__name__} rotates other coordinates of its keys than the leading {rotary_dim}, which "
            "kvfw cannot undo"
        )
    return Probed(
        rotates=bool(turned.any()),
        kv_heads=key.shape[1],
        key_dim=key.shape[-1],
        value_dim=value.shape[-1],
        softcap=given.get("softcap"),
        sinks=given.get("s_aux") is not None,
    )
