"""How many slots each layer and head gets. Compressor and allocator are asked once per event, for all layers."""

from torch import Tensor

from kvfw.model.inspect.layers import Layer
from kvfw.model.session.plan import SessionPlan

#: Slots for the middle of every row and head, int64 ``[B, Hkv]``, by layer.
Budgets = dict[int, Tensor]


def budgets(plan: SessionPlan, parts: tuple[Layer, ...], tokens: Tensor, *, standing: bool) -> Budgets:
    """What the amount means for rows of so many real tokens, ``[B]``, divided by the allocator.

    ``standing``: what compression while decoding goes down to, whatever is added.

    Raises:
        BudgetError: a prompt without room for its amount.
    """
    assert plan.compressor is not None
    each = plan.compressor.standing_slots(tokens) if standing else plan.compressor.middle_slots(tokens)
    heads = [part.kv_heads for part in parts]
    divided = plan.allocator.allocate(each * sum(heads), heads)
    return {part.index: budget for part, budget in zip(parts, divided, strict=True)}
