"""Taking slots out of a state and putting states together, all heads at once, ragged heads padded on the left."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.state import KVState


def take(state: KVState, chosen: Bool[Tensor, "B Hkv N"]) -> KVState:
    """The chosen slots of every head, in their order, as new tensors.

    The result is as wide as the head with the most chosen slots; other heads get empty slots on the left.
    """
    counts = chosen.sum(-1, keepdim=True)
    width = int(counts.max()) if counts.numel() else 0
    # A stable sort moves the chosen to the right and keeps their order.
    index = chosen.to(torch.uint8).argsort(dim=-1, stable=True)[..., chosen.shape[-1] - width :]
    real = torch.arange(width, device=chosen.device) >= width - counts
    return _blanked(gather(state, index), real)


def gather(state: KVState, index: Int64[Tensor, "B Hkv K"]) -> KVState:
    """Slots ``index`` of every head, as new tensors."""
    return KVState(
        keys=_rows(state.keys, index),
        values=_rows(state.values, index),
        positions=state.positions.gather(2, index),
        mass=state.mass.gather(2, index),
        bias=state.bias.gather(2, index),
    )


def join(first: KVState, second: KVState) -> KVState:
    """All valid slots of both, ordered by position per head; at equal positions exact tokens come first.

    Slots alike in both keep their order, those of ``first`` before those of ``second``.
    """
    both = KVState(
        keys=torch.cat((first.keys, second.keys), dim=2),
        values=torch.cat((first.values, second.values), dim=2),
        positions=torch.cat((first.positions, second.positions), dim=2),
        mass=torch.cat((first.mass, second.mass), dim=2),
        bias=torch.cat((first.bias, second.bias), dim=2),
    )
    # Empty slots have position -1 and so come out on the left.
    exact_first = (both.mass != 1).to(torch.uint8).argsort(dim=-1, stable=True)
    by_position = both.positions.gather(-1, exact_first).argsort(dim=-1, stable=True)
    ordered = gather(both, exact_first.gather(-1, by_position))
    width = int(ordered.valid.sum(-1).max())
    if width == ordered.width:
        return ordered
    return take(ordered, ordered.valid)


def empty_like(state: KVState) -> KVState:
    """A state of the same heads without slots."""
    return take(state, torch.zeros_like(state.valid))


def append(state: KVState, new: KVState) -> KVState:
    """New tokens after the slots of a state, as attention sees them."""
    return KVState(
        keys=torch.cat((state.keys, new.keys), dim=2),
        values=torch.cat((state.values, new.values), dim=2),
        positions=torch.cat((state.positions, new.positions), dim=2),
        mass=torch.cat((state.mass, new.mass), dim=2),
        bias=torch.cat((state.bias, new.bias), dim=2),
    )


def _rows(x: Float[Tensor, "B Hkv N D"], index: Int64[Tensor, "B Hkv K"]) -> Float[Tensor, "B Hkv K D"]:
    return x.gather(2, index[..., None].expand(*index.shape, x.shape[-1]))


def _blanked(state: KVState, real: Bool[Tensor, "B Hkv N"]) -> KVState:
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
