"""Slots per layer and head, computed once per event for all layers."""

import torch
from torch import Tensor

from kvfw.core.compress.allocation import Budgets, mean_budgets
from kvfw.model.inspect.layers import Layer
from kvfw.model.session.plan import SessionPlan


def budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor, *, standing: bool) -> Budgets:
    """The mean budgets of compressed layers for rows of ``tokens`` real tokens ``[B]``; see :func:`mean_budgets`.

    ``standing``: the budget of compressions while decoding, which does not depend on the tokens added.

    Raises:
        BudgetError: a prompt too short for its amount.
        RunError: the allocator failed, or broke its contract.
    """
    by = plan.compressor
    assert by is not None
    each, middle = by.standing_slots(tokens) if standing else by.middle_slots(tokens), by.middle(tokens)
    if standing:
        # Just before such a compression the middle has its standing budget and the tokens decoded since.
        middle = torch.maximum(middle, each + (plan.compress_every or 0))
    return mean_budgets(by, each, middle, {part.index: part.kv_heads for part in parts})
