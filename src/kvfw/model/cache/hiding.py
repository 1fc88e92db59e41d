"""Removes the slots of tokens that a mask hides from a layer."""

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
    """A copy of ``layer`` without the slots of the ``hidden`` tokens ``[B, seen]``, none of which is padding.

    ``seen_at`` ``[B, seen]`` are the positions of all tokens.

    Raises:
        UnsupportedError: a hidden token has no identifiable slot of its own.
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
        kept = take(state, left)
        thinned.hold(kept)
        sums = {n: take_scores(part, left, kept.width) * kept.valid for n, part in sums.items()}
    else:
        # Before compression the model's own mask applies, which has an entry for every token.
        thinned.hold(blanked(state, left))
    thinned.captured = replace(
        captured,
        tokens=captured.tokens - hidden.sum(1),
        query_positions=positions,
        sums=sums,
        seen_at=None if captured.seen_at is None else at.masked_fill(hidden, -1.0),
    )
    return thinned
