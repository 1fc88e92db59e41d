"""Reads how a model rotates its keys from its own rotary module."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvfw.core.state.rope import LAYOUTS, Layout, Rope, rotate
from kvfw.errors import UnsupportedError
from kvfw.model.inspect.probe import Probed, probe_layers

#: Positions at which the model's own rotation is tried.
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
        """A layer's current rotation, None if it has none; dynamic variants change theirs with the input's length."""
        if self.module is None or not self.rotates[layer]:
            return None
        inv_freq, scaling = _table(self.module, self.layer_types[layer] if self.layer_types else None)
        return Rope(inv_freq.detach().float().clone(), scaling, self.layout)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Undoes what forwards inside the block do to the rotary tables of dynamic variants."""
        module: Any = self.module
        before = {} if module is None else {**module._buffers}
        lengths = {} if module is None else {k: v for k, v in vars(module).items() if isinstance(v, int)}
        try:
            yield
        finally:
            if module is not None:
                module._buffers.update(before)
                vars(module).update(lengths)

    def settings(self, layer: int) -> Mapping[str, Any]:
        """The configuration of a layer's rotation, under transformers' names."""
        config: Any = getattr(self.module, "config", None)
        settings: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
        if self.layer_types and isinstance(settings.get(self.layer_types[layer]), Mapping):
            settings = settings[self.layer_types[layer]]
        return settings


def rotary_reader(
    model: PreTrainedModel, attentions: tuple[nn.Module, ...]
) -> tuple[RotaryReader, tuple[Probed | None, ...]]:
    """Finds a model's rotary module and how it pairs coordinates, and probes its attention modules, in layer order.

    Raises:
        UnsupportedError: kvfw does not know how to undo the model's rotation.
    """
    module = next((m for name, m in model.named_modules() if name.split(".")[-1].startswith("rotary_emb")), None)
    config: Any = attentions[0].config
    if module is None:
        if hasattr(sys.modules[type(attentions[0]).__module__], "apply_rotary_pos_emb"):
            raise _hidden_rotation(attentions[0])
        return RotaryReader(None, "half", (), (False,) * len(attentions)), (None,) * len(attentions)
    per_type = not isinstance(getattr(module, "inv_freq", None), Tensor)
    layer_types = tuple(getattr(config, "layer_types", None) or ()) if per_type else ()
    if per_type and not (layer_types and hasattr(module, f"{layer_types[0]}_inv_freq")):
        raise _hidden_rotation(attentions[0])
    if _table(module, layer_types[0] if layer_types else None)[0].is_meta:
        raise UnsupportedError(
            f"the rotary frequencies of {type(model).__name__} are offloaded, so kvfw cannot read them; load the model "
            "without offload_buffers=True"
        )
    # A copy, because dynamic variants change their frequencies whenever they are called.
    tables, rope = _probe_tables(copy.deepcopy(module), layer_types)
    probed = probe_layers(model, attentions, tables[0].shape[-1], rope.rotary_dim)
    rotates = tuple(layer is None or layer.rotates for layer in probed)
    return RotaryReader(module, _layout(attentions[0], tables, rope), layer_types, rotates), probed


def _hidden_rotation(attention: nn.Module) -> UnsupportedError:
    return UnsupportedError(
        f"{type(attention).__name__} rotates its keys by a table of its own and not by the frequencies of a rotary "
        "module, so kvfw cannot read how"
    )


def _table(module: nn.Module, layer_type: str | None) -> tuple[Tensor, float]:
    prefix = "" if layer_type is None else f"{layer_type}_"
    inv_freq: Tensor = getattr(module, f"{prefix}inv_freq")
    return inv_freq, float(getattr(module, f"{prefix}attention_scaling", 1.0))


@torch.no_grad()
def _probe_tables(module: nn.Module, layer_types: tuple[str, ...]) -> tuple[tuple[Tensor, Tensor], Rope]:
    """A rotary module's cosines and sines ``[1, 3, rotary_dim]`` at the probe's positions, and their frequencies."""
    layer_type = layer_types[0] if layer_types else None
    device = _table(module, layer_type)[0].device
    # Two-dimensional ids also work for models with several axes: text has the same position on every axis.
    x, positions = torch.zeros(1, device=device), torch.tensor([PROBE_POSITIONS], device=device)
    takes_type = "layer_type" in inspect.signature(module.forward).parameters
    tables = module(x, positions, layer_type) if takes_type else module(x, positions)
    inv_freq, scaling = _table(module, layer_type)
    return tables, Rope(inv_freq.float(), scaling)


@torch.no_grad()
def _layout(attention: nn.Module, tables: tuple[Tensor, Tensor], rope: Rope) -> Layout:
    """The layout whose rotation of a random probe equals that of the model's own function."""
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
