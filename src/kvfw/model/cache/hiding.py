"""Takes the slots of tokens that a mask hides out of a layer."""

from dataclasses import replace

import torch
from torch import Tensor

from kvfw.core.compress.stages import take_scores
from kvfw.core.state.slots import blanked, take
from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer

#: What to do about a mask that cannot be honoured.
WAY_OUT = "run the visible tokens as a prompt of their own, in a block of its own"


def hide(layer: CompressedLayer, seen_at: Tensor, hidden: Tensor) -> CompressedLayer:
    """A layer like this one in which the hidden tokens' slots are gone.

    Args:
        layer: a layer of the cache.
        seen_at: ``[B, seen]``, where all tokens stood.
        hidden: ``[B, seen]``, the tokens; none of them is padding.

    Raises:
        UnsupportedError: a hidden token has no slot of its own that could be told.
    """
    captured, state = layer.captured, layer.state
    hidden, at = hidden.to(layer.device), seen_at.to(layer.device)
    where = [row[gone] for row, gone in zip(at, hidden, strict=True)]
    seen = [row[~gone] for row, gone in zip(at, hidden, strict=True)]
    if captured.moved or any(bool(torch.isin(ours, rest).any()) for ours, rest in zip(where, seen, strict=True)):
        raise UnsupportedError(
            "the attention mask hides tokens of the cache, and their slots can no longer be told by their positions; "
            f"{WAY_OUT}"
        )
    exact = state.mass == 1
    found = exact & torch.stack([torch.isin(row, gone) for row, gone in zip(state.positions, where, strict=True)])
    if bool(((found.sum(-1) < hidden.sum(1)[:, None]) & (state.mass > 1).any(-1)).any()):
        raise UnsupportedError(
            "the attention mask hides tokens of the cache that may have been merged with others into one slot; hide "
            f"only tokens that are still in it, or {WAY_OUT}"
        )
    left = state.valid & ~found
    thinned, positions = layer.copy(), captured.query_positions
    if positions is not None:
        gone = torch.stack([torch.isin(row, ours) for row, ours in zip(positions, where, strict=True)])
        positions = positions.masked_fill(gone, -1.0)
    sums = captured.sums
    if captured.compressed:
        thinned.storage.hold(take(state, left))
        sums = {n: take_scores(part, left, thinned.stored) * thinned.state.valid for n, part in sums.items()}
    else:
        # Until then the model's own mask speaks of all tokens, each in its place.
        thinned.storage.hold(blanked(state, left))
    thinned.captured = replace(
        captured,
        tokens=captured.tokens - hidden.sum(1),
        query_positions=positions,
        sums=sums,
        seen_at=None if captured.seen_at is None else at.masked_fill(hidden, -1.0),
    )
    return thinned
