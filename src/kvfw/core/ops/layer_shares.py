"""Budgets from one weight per layer, or per layer and head, or from one number per layer and slot."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.ops.rounding import by_weight


def per_head(layers: Sequence[LayerView], device: torch.device) -> Int64[Tensor, "B heads"]:
    """The most slots that every head of every layer can use."""
    return torch.cat([layer.middle.to(device)[:, None].expand(-1, layer.kv_heads) for layer in layers], 1)


def shared_out(
    weights: Float64[Tensor, "B n"],
    total: Int64[Tensor, " B"],
    layers: Sequence[LayerView],
    least: Float64[Tensor, "B n"] | None = None,
) -> list[Int64[Tensor, "B Hkv"]]:
    """``total`` in proportion to the weights of a head, by :func:`kvfw.core.ops.rounding.by_weight`.

    Args:
        weights: one per layer, which each of its heads then has, or one per layer and head.
        total: slots of every row over all layers and heads.
        layers: the layers.
        least: what every head gets beforehand; shaped as the weights.
    """
    heads = [layer.kv_heads for layer in layers]
    if weights.shape[1] == len(layers):
        repeats = torch.tensor(heads, device=weights.device)
        weights = weights.repeat_interleave(repeats, 1)
        least = None if least is None else least.repeat_interleave(repeats, 1)
    return list(torch.split(by_weight(weights, total, per_head(layers, total.device), least), heads, 1))


def handed_out(
    before: Float64[Tensor, "B width n"], total: Int64[Tensor, " B"], layers: Sequence[LayerView]
) -> list[Int64[Tensor, "B Hkv"]]:
    """``total`` slots handed out to layers, one for each of a layer's heads at a time, the least ``before`` first.

    Ties go to the layer with fewer slots, then to the lower one; less than one slot per head goes to the next layer's
    first heads.

    Args:
        before: what every layer's next slot is ranked by, ascending per layer; infinity beyond its middle.
        total: slots of every row over all layers and heads.
        layers: the layers.
    """
    order = before.flatten(1).argsort(dim=1, stable=True)
    cost = torch.tensor([layer.kv_heads for layer in layers], device=total.device).repeat(before.shape[1])[order]
    given = (total[:, None] - (cost.cumsum(1) - cost)).clamp(min=0).minimum(cost)
    given = torch.zeros_like(given).scatter_(1, order, given).view(before.shape)
    slots = torch.arange(max(layer.kv_heads for layer in layers), device=total.device)
    return [(given[:, :, i, None] > slots[: layer.kv_heads]).sum(1) for i, layer in enumerate(layers)]
