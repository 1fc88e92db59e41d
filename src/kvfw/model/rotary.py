"""Reads how a model rotates its keys from the model's own rotary module, as it is when asked."""

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.core.rope import LAYOUTS, Layout, Rope, rotate
from kvfw.errors import UnsupportedError
from kvfw.model.switch import routed

#: Where the model's own rotation is tried out.
PROBE_POSITIONS = (0, 5, 17)


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


def rotary_reader(model: PreTrainedModel, attentions: tuple[nn.Module, ...]) -> RotaryReader:
    """Finds the rotary module of a model and how it pairs coordinates.

    Args:
        model: the language model.
        attentions: its attention modules, in layer order.

    Raises:
        UnsupportedError: the model's rotation is none that kvfw knows how to undo.
    """
    module = next((m for name, m in model.named_modules() if name.split(".")[-1].startswith("rotary_emb")), None)
    config: Any = attentions[0].config
    if module is None:
        return RotaryReader(None, "half", (), (False,) * len(attentions))
    per_type = not isinstance(getattr(module, "inv_freq", None), Tensor)
    layer_types = tuple(getattr(config, "layer_types", None) or ()) if per_type else ()
    # Asked of a copy: dynamic variants change their frequencies whenever they are called.
    tables, rope = _probe_tables(copy.deepcopy(module), layer_types)
    rotates = _rotating_layers(model, attentions, tables[0].shape[-1])
    return RotaryReader(module, _layout(attentions[0], tables, rope), layer_types, rotates)


class _KeyProbe:
    """Stands in for attention and remembers the keys it was given."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Zeros of the right shape."""
        self.keys = key
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    def see_padding(self, padding: Tensor | None) -> None:
        """There is none."""


@torch.no_grad()
def _rotating_layers(model: PreTrainedModel, attentions: tuple[nn.Module, ...], rotary_dim: int) -> tuple[bool, ...]:
    """Whether each layer rotates its keys, asked of the layers themselves: tables of NaN leave their mark.

    Some families rotate in their sliding-window layers only, and say so nowhere but in the forward. Layers alike in all
    their plain attributes are asked once.

    Raises:
        UnsupportedError: a layer rotates other coordinates than the leading ones.
    """
    answers: dict[object, bool] = {}
    rotates: list[bool] = []
    probe = _KeyProbe()
    with routed(model, probe):
        for attention in attentions:
            alike = (type(attention), *_plain_attributes(attention))
            if alike not in answers:
                answers[alike] = _rotates(attention, model.dtype, rotary_dim, probe)
            rotates.append(answers[alike])
    return tuple(rotates)


def _plain_attributes(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """All that can make two layers of one class differ, apart from their weights and their place."""
    return tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if name != "layer_idx" and isinstance(value, bool | int | float | str | None)
    )


def _rotates(attention: nn.Module, dtype: torch.dtype, rotary_dim: int, probe: _KeyProbe) -> bool:
    if "position_embeddings" not in inspect.signature(attention.forward).parameters:
        return True
    config: Any = attention.config
    like = next(attention.parameters())
    hidden = torch.zeros(1, 1, config.hidden_size, dtype=dtype, device=like.device)
    table = torch.full((1, 1, rotary_dim), torch.nan, dtype=dtype, device=like.device)
    # Not a call of the module: its forward hooks are other people's, and this is no forward of theirs.
    attention.forward(hidden_states=hidden, position_embeddings=(table, table), attention_mask=None)
    assert probe.keys is not None
    turned = probe.keys.isnan()[0, 0, 0]
    if bool(turned.any()) and not bool(turned[:rotary_dim].all() and not turned[rotary_dim:].any()):
        raise UnsupportedError(
            f"{type(attention).__name__} rotates other coordinates of its keys than the leading {rotary_dim}, which "
            "kvfw cannot undo"
        )
    return bool(turned.any())


def _table(module: nn.Module, layer_type: str | None) -> tuple[Tensor, float]:
    prefix = "" if layer_type is None else f"{layer_type}_"
    inv_freq: Tensor = getattr(module, f"{prefix}inv_freq")
    return inv_freq, float(getattr(module, f"{prefix}attention_scaling", 1.0))


@torch.no_grad()
def _probe_tables(module: nn.Module, layer_types: tuple[str, ...]) -> tuple[tuple[Tensor, Tensor], Rope]:
    """A rotary module's own cosines and sines ``[1, 3, rotary_dim]`` at the probe's positions, and what made them."""
    layer_type = layer_types[0] if layer_types else None
    device = _table(module, layer_type)[0].device
    # Two-dimensional ids do for models that take one row per axis too: text has the same position on every axis.
    x, positions = torch.zeros(1, device=device), torch.tensor([PROBE_POSITIONS], device=device)
    takes_type = "layer_type" in inspect.signature(module.forward).parameters
    tables = module(x, positions, layer_type) if takes_type else module(x, positions)
    inv_freq, scaling = _table(module, layer_type)
    return tables, Rope(inv_freq.float(), scaling)


@torch.no_grad()
def _layout(attention: nn.Module, tables: tuple[Tensor, Tensor], rope: Rope) -> Layout:
    """Rotates a probe with the model's own function and finds the layout that gives the same."""
    apply: Callable[..., Any] | None = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    name = type(attention).__name__
    if apply is None:
        raise UnsupportedError(f"{name} has no apply_rotary_pos_emb, so kvfw cannot tell how it rotates its keys")
    device = rope.inv_freq.device
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, len(PROBE_POSITIONS), rope.rotary_dim, generator=generator).to(device)
    positions = torch.tensor(PROBE_POSITIONS, dtype=torch.float32, device=device)
    _, theirs = apply(x, x, *tables)
    for layout in LAYOUTS:
        ours = rotate(x, positions[None, None], replace(rope, layout=layout))
        if torch.allclose(ours, theirs.float(), atol=1e-4):
            return layout
    raise UnsupportedError(f"{name} rotates its keys in a way that is neither half-split nor interleaved")
