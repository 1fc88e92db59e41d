"""Divides budgets over layers and heads: the default allocator, and the checks every allocator must pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from jaxtyping import Int64
from torch import Tensor

from kvfw.core.compress.scores import Scores
from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.errors import RunError

if TYPE_CHECKING:
    from kvfw.core.compress.compressor import Compressor, Rule

#: Slots for the middle of every row and head, int64 ``[B, Hkv]``, by layer.
Budgets = dict[int, Tensor]


@dataclass(frozen=True)
class EvenSplit:
    """Every layer and head gets the same number of slots."""

    def allocate(self, total: Int64[Tensor, " B"], layers: Sequence[LayerView]) -> list[Int64[Tensor, "B Hkv"]]:
        """``total`` divided by the number of heads; it has no remainder by construction."""
        each = total // sum(layer.kv_heads for layer in layers)
        return [each[:, None].expand(-1, layer.kv_heads).clone() for layer in layers]


EVEN: Final = EvenSplit()


def mean_budgets(
    by: "Compressor", each: Int64[Tensor, " B"], middle: Int64[Tensor, " B"], kv_heads: Mapping[int, int]
) -> Budgets:
    """The budgets of all compressed layers, as far as they depend on shapes only.

    An allocator that looks at scores gets the same number of slots in every head here; :func:`scored_budgets` divides
    them anew.

    Args:
        by: gives every layer's allocator.
        each: mean slots per head of each row, at most ``middle``.
        middle: the most slots each row can use in one head.
        kv_heads: number of KV heads by layer index.

    Raises:
        RunError: an allocator failed or broke a rule of :class:`kvfw.core.contracts.parts.Allocator`.
    """
    found: Budgets = {}
    for rule, heads in by.pools(kv_heads):
        allocator = rule.allocator if rule.scope == "shape" else EVEN
        views = [LayerView(index, count, middle.clone()) for index, count in heads.items()]
        found |= zip(heads, allocated(allocator, each * sum(heads.values()), views), strict=True)
    return {index: found[index] for index in kv_heads if index in found}


def scored_budgets(rule: "Rule", mean: Budgets, scores: Mapping[int, Scores]) -> Budgets:
    """The mean budgets of some layers of one policy, divided anew by an allocator that looks at scores.

    Args:
        rule: the policy of these layers.
        mean: what :func:`mean_budgets` gave them.
        scores: their observations.

    Raises:
        RunError: the allocator, or the scorer it ranks by, failed or broke its contract.
    """
    if rule.scope == "shape":
        return mean
    together = [list(mean)] if rule.scope == "model" else [[index] for index in mean]
    found: Budgets = {}
    for layers in together:
        views = [_view(index, scores[index], rule) for index in layers]
        total = torch.stack([mean[index].sum(-1).to(mean[layers[0]].device) for index in layers]).sum(0)
        # While decoding a head may hold fewer slots than its mean budget.
        most = torch.stack([scores[i].obs.middle.sum((-1, -2)).to(total.device) for i in layers]).sum(0)
        found |= zip(layers, allocated(rule.allocator, total.minimum(most), views), strict=True)
    return found


def _view(index: int, scores: Scores, rule: "Rule") -> LayerView:
    obs = scores.obs
    counts = obs.middle.sum(-1)
    return LayerView(index, counts.shape[1], counts.amax(-1), scores.shown(rule.allocator_needs), rule.ranking)


def allocated(
    allocator: Allocator, total: Int64[Tensor, " B"], layers: Sequence[LayerView]
) -> list[Int64[Tensor, "B Hkv"]]:
    """The allocator's budgets, checked.

    Raises:
        RunError: the allocator failed or broke a rule of :class:`kvfw.core.contracts.parts.Allocator`.
    """
    who = f"allocator {type(allocator).__name__}"
    with blamed(who):
        given: object = allocator.allocate(total.clone(), layers)
    if not isinstance(given, Sequence) or len(given) != len(layers):
        said = f"{len(given)} entries" if isinstance(given, Sequence) else type(given).__name__
        raise RunError(f"{who} returned {said}; a sequence of {len(layers)} tensors is expected, one per layer")
    for layer, budget in zip(layers, given, strict=True):
        _check(budget, layer, f"{who} returned for layer {layer.index}")
    sums = torch.stack([budget.to(total.device).sum(-1) for budget in given]).sum(0)
    exact = bool(getattr(allocator, "exact", True))
    if not torch.equal(sums, total) and (exact or bool((sums > total).any())):
        raise RunError(
            f"{who} gave {sums.tolist()} slots to the rows where their totals are {total.tolist()}; budgets must add "
            "up to the total exactly" + ("" if exact else ", or to less")
        )
    return list(given)


def _check(budget: object, layer: LayerView, who: str) -> None:
    middle = layer.middle
    shape = (len(middle), layer.kv_heads)
    if not isinstance(budget, Tensor) or budget.dtype != torch.int64 or budget.shape != shape:
        said = f"{budget.dtype} of shape {tuple(budget.shape)}" if isinstance(budget, Tensor) else type(budget).__name__
        raise RunError(f"{who} {said}; torch.int64 of shape {shape} is expected: slots per row and KV head")
    if bool(((budget < 0) | (budget > middle[:, None].to(budget.device))).any()):
        raise RunError(f"{who} {budget.tolist()}; a head of each row takes 0 to {middle.tolist()} slots")
