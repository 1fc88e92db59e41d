"""Takes slots out of states and joins states, all heads at once; shorter heads are padded on the left."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from kvfw.core.state.state import KVState


def take(state: KVState, chosen: Bool[Tensor, "B Hkv N"]) -> KVState:
    """The chosen slots of every head, in their order, as new tensors.

    The result is as wide as the head with the most chosen slots; other heads get empty slots on the left.
    """
    counts = chosen.sum(-1, keepdim=True)
    width = int(counts.max()) if counts.numel() else 0
    index = chosen_slots(chosen, width)
    real = torch.arange(width, device=chosen.device) >= width - counts
    return blanked(gather(state, index), real)


def chosen_slots(chosen: Bool[Tensor, "B Hkv N"], width: int) -> Int64[Tensor, "B Hkv K"]:
    """Indices of the chosen slots of every head, in order, right-aligned to ``width``, the most of any head.

    A head with fewer chosen slots has indices of other slots on the left.
    """
    if bool((chosen.sum(-1) == width).all()):  # nothing to sort
        return chosen.nonzero()[:, 2].view(*chosen.shape[:2], width)
    # A stable sort moves the chosen to the right and keeps their order.
    return chosen.to(torch.uint8).argsort(dim=-1, stable=True)[..., chosen.shape[-1] - width :]


def gather(state: KVState, index: Int64[Tensor, "B Hkv K"]) -> KVState:
    """Slots ``index`` of every head, as new tensors."""
    return KVState(
        keys=rows(state.keys, index),
        values=rows(state.values, index),
        positions=state.positions.gather(2, index),
        mass=state.mass.gather(2, index),
        bias=state.bias.gather(2, index),
    )


def rows(x: Float[Tensor, "B Hkv N D"], index: Int64[Tensor, "B Hkv K"]) -> Float[Tensor, "B Hkv K D"]:
    """Rows ``index`` (0 or more, not checked) of every head, as a new tensor.

    Copies whole rows of a table, several times faster than ``torch.gather``, which looks up every number. A tensor laid
    out neither head by head nor token by token is copied as a whole first.
    """
    batch, heads, width, dim = x.shape
    row = torch.arange(batch, device=x.device)[:, None, None]
    head = torch.arange(heads, device=x.device)[:, None]
    if x.transpose(1, 2).is_contiguous():
        # Models write their caches token by token, with the heads side by side.
        table, at = x.transpose(1, 2).flatten(0, 2), (row * width + index) * heads + head
    else:
        table, at = x.flatten(0, 2), (row * heads + head) * width + index
    return table.index_select(0, at.flatten()).view(*index.shape, dim)


def join(first: KVState, second: KVState) -> KVState:
    """All valid slots of both, ordered by position per head; at equal positions exact tokens come first.

    Slots equal in both respects keep their order, those of ``first`` before those of ``second``.
    """
    both = append(first, second)
    # Empty slots have position -1, so they end up on the left.
    exact_first = (both.mass != 1).to(torch.uint8).argsort(dim=-1, stable=True)
    by_position = both.positions.gather(-1, exact_first).argsort(dim=-1, stable=True)
    ordered = gather(both, exact_first.gather(-1, by_position))
    full = int(ordered.valid.sum(-1).max()) == ordered.width
    return ordered if full else take(ordered, ordered.valid)


def head_sizes(state: KVState) -> Int64[Tensor, "B Hkv"]:
    """Slots of every head, from its first that is not empty."""
    return state.width - (state.valid.cumsum(-1) == 0).sum(-1)


def empty_like(state: KVState) -> KVState:
    """A state with the same heads and no slots."""
    return take(state, torch.zeros_like(state.valid))


def append(state: KVState, new: KVState) -> KVState:
    """The slots of a state followed by new tokens."""
    return _joined((state, new), 2)


def stack(states: Sequence[KVState]) -> KVState:
    """Concatenates states along the batch; narrower states get empty slots on the left. One state is returned as is."""
    if len(states) == 1:
        return states[0]
    width = max(state.width for state in states)
    return _joined([widened(state, width) for state in states], 0)


def _joined(states: Sequence[KVState], dim: int) -> KVState:
    return KVState(*(torch.cat(parts, dim) for parts in zip(*(state.parts for state in states), strict=True)))


def widened(state: KVState, width: int) -> KVState:
    """The state with empty slots on the left, ``width`` slots per head in all."""
    more = width - state.width
    if more == 0:
        return state
    return KVState(
        keys=pad(state.keys, (0, 0, more, 0)),
        values=pad(state.values, (0, 0, more, 0)),
        positions=pad(state.positions, (more, 0), value=-1.0),
        mass=pad(state.mass, (more, 0)),
        bias=pad(state.bias, (more, 0), value=-torch.inf),
    )


def blanked(state: KVState, real: Bool[Tensor, "B Hkv N"]) -> KVState:
    """The state with every slot that is not real emptied in place."""
    if bool(real.all()):
        return state
    gone = ~real
    return replace(
        state,
        keys=state.keys.masked_fill(gone[..., None], 0),
        values=state.values.masked_fill(gone[..., None], 0),
        positions=state.positions.masked_fill(gone, -1.0),
        mass=state.mass.masked_fill(gone, 0.0),
        bias=state.bias.masked_fill(gone, -torch.inf),
    )
