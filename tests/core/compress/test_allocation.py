"""An allocator is held to its contract, and named where it breaks it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kvfw.core.compress.allocation import EvenSplit, allocated
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.errors import RunError

EACH, MIDDLE = torch.tensor([5, 3]), torch.tensor([20, 12])
HEADS = {0: 2, 5: 2}


@dataclass(frozen=True)
class Odd:
    """Answers what it is told to."""

    answer: Callable[[Tensor, Sequence[LayerView]], Any]

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> Any:
        return self.answer(total, layers)


def divided(allocator: Allocator) -> list[Tensor]:
    """The budgets of two layers, checked."""
    views = [LayerView(index, heads, MIDDLE.clone()) for index, heads in HEADS.items()]
    return allocated(allocator, EACH * sum(HEADS.values()), views)


def even(total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
    return EvenSplit().allocate(total, layers)


def test_budgets_come_back_layer_by_layer() -> None:
    budgets = divided(EvenSplit())
    assert [budget.tolist() for budget in budgets] == [[[5, 5], [3, 3]]] * len(HEADS)


def test_an_allocator_sees_indices_heads_and_middles_and_cannot_change_them() -> None:
    def greedy(total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        assert [(layer.index, layer.kv_heads, layer.middle.tolist()) for layer in layers] == [
            (0, 2, [20, 12]),
            (5, 2, [20, 12]),
        ]
        layers[0].middle.fill_(1000)
        total.mul_(2)
        return even(total, layers)

    with pytest.raises(RunError, match=r"allocator Odd gave \[40, 24\] slots .* totals are \[20, 12\]"):
        divided(Odd(greedy))


def uneven(first: int, second: int) -> Callable[[Tensor, Sequence[LayerView]], Any]:
    return lambda total, layers: [
        torch.stack((each + sign * first, each + sign * second), dim=1)
        for sign, each in zip((1, -1), (total // 4, total // 4), strict=True)
    ]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda total, layers: [10 * b for b in even(total, layers)],
            r"layer 0 \[\[50, 50\], .* takes 0 to \[20, 12\]",
        ),
        (lambda total, layers: [b - 1 for b in even(total, layers)], r"gave \[16, 8\] slots .* totals are \[20, 12\]"),
        (uneven(6, 0), r"layer 5 \[\[-1, 5\], \[-3, 3\]\]; a head of each row takes 0 to"),
        (uneven(10, -10), r"layer 0 \[\[15, -5\]"),
        (
            lambda total, layers: [b.float() for b in even(total, layers)],
            r"layer 0 torch.float32 of shape \(2, 2\); torch.int64",
        ),
        (lambda total, layers: [b[0] for b in even(total, layers)], r"layer 0 torch.int64 of shape \(2,\); .*\(2, 2\)"),
        (lambda total, layers: [[5, 5], [5, 5]], "layer 0 list; torch.int64"),
        (lambda total, layers: even(total, layers)[:1], "returned 1 entries; a sequence of 2 tensors is expected"),
        (lambda total, layers: None, "returned NoneType; a sequence of 2 tensors"),
        (lambda total, layers: 1 // 0, "failed: ZeroDivisionError"),
    ],
)
def test_a_broken_allocator_is_named_with_the_value_and_the_rule(answer: Any, says: str) -> None:
    with pytest.raises(RunError, match=rf"^allocator Odd .*{says}"):
        divided(Odd(answer))
