"""Reads how a model rotates its keys from the model's own rotary module, as it is when asked."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from kvfw.core.rope import Layout, Rope, rotate
from kvfw.errors import UnsupportedError


@dataclass(frozen=True)
class RotaryReader:
    """Where a model keeps its rotary tables.

    Args:
        module: the rotary module, or None for a model without one.
        layout: which coordinates form a pair, found by comparing with the model's own rotation.
        layer_types: type of every layer, for models with one table per type; empty otherwise.
        rotates: for every layer, whether it rotates its keys at all.
    """

    module: nn.Module | None
    layout: Layout
    layer_types: tuple[str, ...]
    rotates: tuple[bool, ...]

    def read(self, layer: int) -> Rope | None:
        """The rotation in force now for a layer; None where the layer rotates nothing.

        Dynamic variants change their frequencies with the length of the input, so this is read when keys are written.
        """
        if self.module is None or not self.rotates[layer]:
            return None
        inv_freq, scaling = _table(self.module, self.layer_types[layer] if self.layer_types else None)
        return Rope(inv_freq.detach().float().clone(), scaling, self.layout)


def rotary_reader(model: nn.Module, attentions: tuple[nn.Module, ...]) -> RotaryReader:
    """Finds the rotary module of a model and how it pairs coordinates.

    Args:
        model: the language model.
        attentions: its attention modules, in layer order.

    Raises:
        UnsupportedError: the model's rotation is none that kvfw knows how to undo.
    """
    module = next(
        (m for name, m in model.named_modules() if name.split(".")[-1].startswith("rotary_emb")), None
    )
    config: Any = attentions[0].config
    rotates = _rotating_layers(config, len(attentions))
    if module is None:
        return RotaryReader(None, "half", (), rotates)
    per_type = not isinstance(getattr(module, "inv_freq", None), Tensor)
    layer_types = tuple(getattr(config, "layer_types", None) or ()) if per_type else ()
    return RotaryReader(module, _layout(module, attentions[0], layer_types), layer_types, rotates)


def _rotating_layers(config: Any, layers: int) -> tuple[bool, ...]:
    """Layers without RoPE are marked 0 in ``no_rope_layers`` by the families that have them."""
    marks = getattr(config, "no_rope_layers", None)
    return tuple(bool(mark) for mark in marks) if marks else (True,) * layers


def _table(module: nn.Module, layer_type: str | None) -> tuple[Tensor, float]:
    prefix = "" if layer_type is None else f"{layer_type}_"
    inv_freq: Tensor = getattr(module, f"{prefix}inv_freq")
    return inv_freq, float(getattr(module, f"{prefix}attention_scaling", 1.0))


@torch.no_grad()
def _layout(module: nn.Module, attention: nn.Module, layer_types: tuple[str, ...]) -> Layout:
    """Rotates a probe with the model's own functions and finds the layout that gives the same."""
    apply: Callable[..., Any] | None = getattr(
        sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None
    )
    name = type(attention).__name__
    if apply is None:
        raise UnsupportedError(
            f"{name} has no apply_rotary_pos_emb, so kvfw cannot tell how it rotates its keys"
        )
    layer_type = layer_types[0] if layer_types else None
    inv_freq, scaling = _table(module, layer_type)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, 3, 2 * inv_freq.numel(), generator=generator).to(inv_freq.device)
    positions = torch.tensor([[0, 5, 17]], device=inv_freq.device)
    # Two-dimensional ids do for models that take one row per axis too: text has the same position on every axis.
    takes_type = "layer_type" in inspect.signature(module.forward).parameters
    tables = module(x, positions, layer_type) if takes_type else module(x, positions)
    _, theirs = apply(x, x, *tables)
    for layout in get_args(Layout):
        ours = rotate(x, positions[:, None].float(), Rope(inv_freq.float(), scaling, layout))
        if torch.allclose(ours, theirs.float(), atol=1e-4):
            return layout  # type: ignore[no-any-return]
    raise UnsupportedError(f"{name} rotates its keys in a way that is neither half-split nor interleaved")
