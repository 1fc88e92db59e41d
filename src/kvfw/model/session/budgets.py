"""How many slots each layer and head gets. Compressor and allocator are asked once per event, for all layers."""

import torch
from torch import Tensor

from kvfw.core.compress.allocation import allocated
from kvfw.model.inspect.layers import Layer
from kvfw.model.session.plan import SessionPlan

#: Slots for the middle of every row and head, int64 ``[B, Hkv]``, by layer.
Budgets = dict[int, Tensor]


def budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor, *, standing: bool) -> Budgets:
    """What the amount means for rows of so many real tokens, ``[B]``, divided by the allocator.

    ``standing``: what compression while decoding goes down to, whatever is added.

    Raises:
        BudgetError: a prompt without room for its amount.
        RunError: the allocator failed, or broke its contract.
    """
    by = plan.compressor
    assert by is not None
    each, middle = by.standing_slots(tokens) if standing else by.middle_slots(tokens), by.middle(tokens)
    if standing:
        # At the end of a stretch the middle has what it was brought down to, and what was decoded since.
        middle = torch.maximum(middle, each + (plan.compress_every or 0))
    return allocated(plan.allocator, each, middle, {part.index: part.kv_heads for part in parts})
