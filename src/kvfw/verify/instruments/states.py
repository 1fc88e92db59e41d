"""Inspects compressed states: slots of a head, differences between two states, faults of one."""

import torch
from torch import Tensor

from kvfw.core.state.state import KVState

FIELDS = ("keys", "values", "positions", "mass", "bias")
#: Largest difference between a batched sum and one of a row alone, in float32, for numbers of size 1 to 50.
ROUNDING = 1e-3


def head_slots(state: KVState, row: int, head: int) -> tuple[Tensor, ...]:
    """Keys, values, positions, masses and biases of a head's valid slots."""
    valid = state.valid[row, head]
    return tuple(part[row, head][valid] for part in state.parts)


def bit_difference(left: KVState, right: KVState) -> str:
    """What differs between two states; empty if every bit is the same up to the sign of zero."""
    for name, a, b in zip(FIELDS, left.parts, right.parts, strict=True):
        if a.shape != b.shape:
            return f"{name} of shape {tuple(a.shape)} against {tuple(b.shape)}"
        if not torch.equal(a, b):
            return f"{int((a != b).sum())} of {a.numel()} numbers of {name} differ"
    return ""


def row_difference(left: KVState, left_row: int, right: KVState, right_row: int) -> str:
    """What differs in the valid slots of two rows beyond rounding; empty if nothing does."""
    for head in range(left.mass.shape[1]):
        ours, theirs = head_slots(left, left_row, head), head_slots(right, right_row, head)
        if len(ours[3]) != len(theirs[3]):
            return f"head {head}: {len(ours[3])} slots against {len(theirs[3])}"
        for name, a, b in zip(FIELDS, ours, theirs, strict=True):
            if not torch.allclose(a.float(), b.float(), rtol=ROUNDING, atol=ROUNDING):
                return f"head {head}: {name} differ, {brief(a)} against {brief(b)}"
    return ""


def brief(x: Tensor) -> str:
    """The first numbers of a tensor."""
    numbers = [f"{number:.4g}" for number in x.flatten()[:6].tolist()]
    return f"[{', '.join(numbers)}{', ...' if x.numel() > 6 else ''}]"


def order_fault(state: KVState) -> str:
    """The first slots out of order, or the first empty slot not marked as one; empty if there is none."""
    valid = state.valid
    if bool((valid[..., :-1] & ~valid[..., 1:]).any()):
        return "an empty slot to the right of a valid one"
    empty = ~valid
    if not bool((state.positions[empty] == -1).all()) or not bool((state.bias[empty] == -torch.inf).all()):
        return "an empty slot whose position is not -1 or whose bias is not minus infinity"
    both = valid[..., :-1] & valid[..., 1:]
    before, after = state.positions[..., :-1], state.positions[..., 1:]
    if bool((both & (before > after)).any()):
        row, head, slot = (both & (before > after)).nonzero()[0].tolist()
        return f"row {row}, head {head}: {brief(state.positions[row, head, slot : slot + 2])} in this order"
    merged_first = both & (before == after) & (state.mass[..., :-1] != 1) & (state.mass[..., 1:] == 1)
    if bool(merged_first.any()):
        return "at one position a merged slot stands before an exact one"
    return ""


def number_fault(state: KVState) -> str:
    """What is not finite in the valid slots; empty if everything is."""
    for name, part in zip(FIELDS, state.parts, strict=True):
        there = part[state.valid]
        if not bool(there.isfinite().all()):
            return f"{name} with {int((~there.isfinite()).sum())} NaN or infinite numbers in valid slots"
    return ""
