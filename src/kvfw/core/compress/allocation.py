"""Divides a budget over layers and heads: the default allocator, and the checks every allocator must pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.errors import RunError


@dataclass(frozen=True)
class EvenSplit:
    """Every layer and head gets the same number of slots."""

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """``total`` divided by the number of heads; it has no remainder by construction."""
        each = total // sum(layer.kv_heads for layer in layers)
        return [each[:, None].expand(-1, layer.kv_heads).clone() for layer in layers]


def allocated(
    allocator: Allocator, each: Int64[Tensor, " B"], middle: Int64[Tensor, " B"], kv_heads: Mapping[int, int]
) -> dict[int, Int64[Tensor, "B Hkv"]]:
    """The allocator's budgets by layer, checked.

    Args:
        allocator: divides the total.
        each: average slots per head of each row, at most ``middle``.
        middle: the most slots each row can use in one head.
        kv_heads: number of KV heads by layer index.

    Raises:
        RunError: the allocator failed or broke a rule of :class:`kvfw.core.contracts.parts.Allocator`.
    """
    who = f"allocator {type(allocator).__name__}"
    total = each * sum(kv_heads.values())
    layers = [LayerView(index, heads, middle.clone()) for index, heads in kv_heads.items()]
    with blamed(who):
        given: object = allocator.allocate(total.clone(), layers)
    if not isinstance(given, Sequence) or len(given) != len(kv_heads):
        said = f"{len(given)} entries" if isinstance(given, Sequence) else type(given).__name__
        raise RunError(f"{who} returned {said}; a sequence of {len(kv_heads)} tensors is expected, one per layer")
    budgets: dict[int, Tensor] = dict(zip(kv_heads, given, strict=True))
    for index, budget in budgets.items():
        _check(budget, (len(middle), kv_heads[index]), middle, f"{who} returned for layer {index}")
    sums = torch.stack([budget.to(total.device).sum(-1) for budget in budgets.values()]).sum(0)
    if not torch.equal(sums, total):
        raise RunError(
            f"{who} gave {sums.tolist()} slots to the rows where their totals are {total.tolist()}; budgets must add "
            "up to the total exactly"
        )
    return budgets


def _check(budget: object, shape: tuple[int, int], middle: Int64[Tensor, " B"], who: str) -> None:
    if not isinstance(budget, Tensor) or budget.dtype != torch.int64 or budget.shape != shape:
        said = f"{budget.dtype} of shape {tuple(budget.shape)}" if isinstance(budget, Tensor) else type(budget).__name__
        raise RunError(f"{who} {said}; torch.int64 of shape {shape} is expected: slots per row and KV head")
    if bool(((budget < 0) | (budget > middle[:, None].to(budget.device))).any()):
        raise RunError(f"{who} {budget.tolist()}; a head of each row takes 0 to {middle.tolist()} slots")
