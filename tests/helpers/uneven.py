"""Heads of very unequal sizes, and the same slots held padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.model.cache.padded import PaddedStorage


@dataclass(frozen=True)
class StreamingHeads:
    """One head in three gets nothing but its protected tokens; the others share what there is, the first most."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        """The same in every row: no head gets more than the shortest row's middle."""
        places = [place for place in range(sum(layer.kv_heads for layer in layers)) if place % 3 != 1]
        budgets = torch.zeros(len(total), sum(layer.kv_heads for layer in layers), dtype=torch.int64)
        weights = torch.tensor([3 if place % 2 == 0 else 1 for place in places])
        budgets[:, places] = total.cpu()[:, None] * weights // weights.sum()
        budgets[:, places[0]] += total.cpu() - budgets.sum(1)
        return list(torch.split(budgets.to(total.device), [layer.kv_heads for layer in layers], dim=1))


@contextmanager
def padded() -> Iterator[None]:
    """Holds heads of any sizes padded, inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvfw.model.cache.layer.stored", PaddedStorage.of)
        patch.setattr("kvfw.model.cache.stored.RaggedStorage.of", PaddedStorage.of)
        yield
