"""How many slots each layer and head gets. Compressor and allocator are asked once per event, for all layers."""

from torch import Tensor

from kvfw.model.inspect.layers import Layer
from kvfw.model.session.plan import SessionPlan

#: Slots for the middle of every row and head, int64 ``[B, Hkv]``, by layer.
Budgets = dict[int, Tensor]


def turn_budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor) -> Budgets:
    """What the amount means for rows of so many real tokens, ``[B]``.

    Raises:
        BudgetError: a prompt without room for its amount.
    """
    assert plan.compressor is not None
    return _divided(plan, parts, plan.compressor.middle_slots(tokens))


def standing_budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor) -> Budgets:
    """What compression while decoding goes down to after a turn that ended with so many tokens; nothing without it."""
    if plan.compress_every is None:
        return {}
    assert plan.compressor is not None
    return _divided(plan, parts, plan.compressor.standing_slots(tokens))


def _divided(plan: SessionPlan, parts: tuple[Layer, ...], each: Tensor) -> Budgets:
    """A budget per head on average, divided over layers and heads by the allocator."""
    heads = [part.kv_heads for part in parts]
    divided = plan.allocator.allocate(each * sum(heads), heads)
    return {part.index: budget for part, budget in zip(parts, divided, strict=True)}
