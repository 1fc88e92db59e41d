"""Allocators of a stranger, each broken in one way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.contracts.parts import LayerView
from kvfw.core.parts.part import Part


class NoAllocate(Part):
    """Divides nothing."""


class Fractions(sound.Spread):
    """Slots as real numbers."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        return [budget.float() for budget in super().allocate(total, layers)]


class Short(sound.Spread):
    """Loses a slot in rounding."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        return super().allocate(total - 1, layers)


class Boundless(sound.Spread):
    """Gives everything to the first head."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        budgets = [torch.zeros(len(total), layer.kv_heads, dtype=torch.int64) for layer in layers]
        budgets[0][:, 0] = total
        return budgets


class Undeclared(sound.Spread):
    """Looks at scores where its scope says shapes."""

    scope = "shape"


class Lonely(sound.Spread):
    """Wants all layers where its scope says one."""

    scope = "layer"

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        return super().allocate(total, [layers[0], layers[1]])


class FirstRow(sound.Spread):
    """Weighs the heads of every row as the first row's."""

    def weights(self, scores: Tensor) -> Tensor:
        return super().weights(scores)[:1].expand(len(scores), -1)


class Early(sound.Spread):
    """Weighs the scores of the first slots only."""

    def weights(self, scores: Tensor) -> Tensor:
        inside = scores > -torch.inf
        return scores.where(inside & (inside.cumsum(-1) <= 5), 0.0).sum(-1)


class Firstborn(sound.Spread):
    """The first head of a layer counts double."""

    def weights(self, scores: Tensor) -> Tensor:
        factors = torch.ones(scores.shape[1])
        factors[0] = 2
        return super().weights(scores) * factors


class Overhearing(sound.Spread):
    """Uses lexical features where somebody else asked for them."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        if layers[0].seen().lexical is not None:
            layers = [*layers[1:], layers[0]]
        return super().allocate(total, layers)


class Lottery(sound.Spread):
    """Draws the weights, by the global generator."""

    def weights(self, scores: Tensor) -> Tensor:
        return torch.rand(scores.shape[:2])


class Reseeding(sound.Spread):
    """Weights that are drawn alike every time, at everybody's cost."""

    def weights(self, scores: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.rand(scores.shape[:2])


class Spending(sound.Spread):
    """Counts the total down where it stands."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        budgets = super().allocate(total, layers)
        total.sub_(total)
        return budgets
