"""Slots per layer and head; compressor and allocator are called once per event, for all layers."""

import torch
from torch import Tensor

from kvfw.core.compress.allocation import allocated
from kvfw.model.inspect.layers import Layer
from kvfw.model.session.plan import SessionPlan

#: Slots for the middle of every row and head, int64 ``[B, Hkv]``, by layer.
Budgets = dict[int, Tensor]


def budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor, *, standing: bool) -> Budgets:
    """The budget for rows of ``tokens`` real tokens ``[B]``, divided by the allocator.

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
    return allocated(plan.allocator, each, middle, {part.index: part.kv_heads for part in parts})
