"""Budgets from one weight per layer, or per layer and head."""

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
