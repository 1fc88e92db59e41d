"""Merges slots in a space, several layers at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.parts import Merger, Space
from kvfw.core.state.rope import Rope, alike
from kvfw.core.state.slots import rows, stack
from kvfw.core.state.state import KVState
from kvfw.errors import RunError

#: Relative tolerance on the mass of new slots: masses may be divided, and float32 rounds.
MASS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Merging:
    """Slots to be merged: ``tokens`` as cached, their ``weights``, and the ``budget`` of new slots.

    With ``log_mass`` new slots get ``log mass`` as their attention bias. ``layer`` is the layer's index.
    """

    tokens: KVState
    weights: Float[Tensor, "B Hkv N"]
    budget: Int64[Tensor, "B Hkv"]
    merger: Merger
    space: Space
    rope: Rope | None
    log_mass: bool
    layer: int


def merge_together(mergings: Sequence[Merging]) -> list[KVState]:
    """The new slots of each merging.

    Neighbours with the same parts, shapes and rotation are merged as one batch, because a merge consists of many small
    operations whose cost barely depends on the number of rows. Only parts that declare ``rows_apart`` are batched.

    Raises:
        RunError: a merger missed its budget, or lost or invented tokens.
    """
    groups = list[list[Merging]]()
    for merging in mergings:
        if groups and _alike(groups[-1][0], merging):
            groups[-1].append(merging)
        else:
            groups.append([merging])
    return [state for group in groups for state in _split(_merged(group), group)]


def _alike(first: Merging, other: Merging) -> bool:
    """Whether the two can be merged in one batch."""
    same = (first.merger, first.space, first.log_mass) == (other.merger, other.space, other.log_mass)
    apart = first.merger.rows_apart and first.space.rows_apart
    return same and apart and _form(first.tokens) == _form(other.tokens) and alike(first.rope, other.rope)


def _form(state: KVState) -> tuple[object, ...]:
    keys, values = state.keys, state.values
    return keys.shape[1:], values.shape[1:], keys.dtype, values.dtype, keys.device


def _stacked(group: list[Merging]) -> Merging:
    if len(group) == 1:
        return group[0]
    return replace(
        group[0],
        tokens=stack([merging.tokens for merging in group]),
        weights=torch.cat([merging.weights for merging in group]),
        budget=torch.cat([merging.budget for merging in group]),
    )


def _split(merged: KVState, group: list[Merging]) -> list[KVState]:
    sizes = [len(merging.budget) for merging in group]
    return [KVState(*own) for own in zip(*(torch.split(part, sizes) for part in merged.parts), strict=True)]


def _merged(group: list[Merging]) -> KVState:
    """Merges in a space and converts back to the stored dtype; untouched slots come back bit for bit."""
    whole = _stacked(group)
    tokens, merger, space, rope = whole.tokens, whole.merger, whole.space, whole.rope
    layers = " and ".join(str(merging.layer) for merging in group)
    where = f"in layer{'s' if len(group) > 1 else ''} {layers}"
    who, whose = f"merger {type(merger).__name__}", f"space {type(space).__name__} {where}"
    with blamed(whose):
        inside = space.forward(replace(tokens, keys=tokens.keys.float(), values=tokens.values.float()), rope)
    with blamed(f"{who} {where}"):
        merged = merger.merge(inside, whole.weights, whole.budget)
    if not isinstance(merged, KVState):
        raise RunError(f"{who} returned {type(merged).__name__} where a KVState is expected, {where}")
    for merging, own in zip(group, _split(merged, group), strict=True):
        slots = own.valid.sum(-1)
        if not torch.equal(slots, merging.budget):
            raise RunError(
                f"{who} returned {slots.tolist()} slots where its budget was {merging.budget.tolist()}, in layer "
                f"{merging.layer}"
            )
        check_mass(own.mass.sum(-1), merging.tokens.mass.sum(-1), merger.loses_mass, who, merging.layer)
    with blamed(whose):
        back = space.inverse(merged, rope)
    keys, values = back.keys.to(tokens.keys.dtype), back.values.to(tokens.values.dtype)
    source, untouched = match_untouched(inside, merged)
    keys = torch.where(untouched[..., None], rows(tokens.keys, source), keys)
    new = torch.where(back.valid, back.mass.log(), back.bias) if whole.log_mass else back.bias
    bias = torch.where(untouched, tokens.bias.gather(-1, source), new)
    return replace(back, keys=keys, values=values, bias=bias)


def check_mass(
    mass: Float32[Tensor, "B Hkv"], given: Float32[Tensor, "B Hkv"], loses: bool, who: str, layer: int
) -> None:
    """Raises a RunError that names ``who`` if new slots stand for more tokens than went in or, unless it ``loses``
    mass, for fewer.
    """
    off, slack = mass - given, MASS_TOLERANCE * given
    if mass.shape == given.shape and bool(((off <= slack) & (loses | (off >= -slack))).all()):
        return
    raise RunError(
        f"{who} returned slots that stand for {mass.tolist()} tokens where it was given {given.tolist()}, in layer "
        f"{layer}; " + ("loses_mass allows fewer, not more" if loses else "masses must add up")
    )


def match_untouched(before: KVState, after: KVState) -> tuple[Int64[Tensor, "B Hkv K"], Bool[Tensor, "B Hkv K"]]:
    """For every slot of ``after``, the slot of ``before`` at its position, and whether the two are identical.

    Positions ascend per head, so candidates are found by binary search.
    """
    source = torch.searchsorted(before.positions.contiguous(), after.positions.contiguous())
    source = source.clamp(max=before.width - 1)
    same = after.valid & (before.mass.gather(-1, source) == after.mass)
    same &= before.positions.gather(-1, source) == after.positions
    # Few slots get this far; comparing keys and values only for them saves most of the work.
    row, head, slot = same.nonzero(as_tuple=True)
    at = row, head, source[row, head, slot]
    for old, new in ((before.keys, after.keys), (before.values, after.values)):
        same[row, head, slot] &= (old[at] == new[row, head, slot]).all(-1)
    return source, same
