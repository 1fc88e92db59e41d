"""The mask of a compressed layer, built from its own state."""

import torch
from torch import Tensor

from kvfw.core.state.state import KVState


def layer_mask(state: KVState, new: int, query: Tensor, *, plain: bool) -> Tensor | None:
    """What attention needs for ``new`` tokens that are the last slots of ``state``.

    Every valid stored slot is visible, new tokens are causal among themselves, and biases are added.

    Args:
        state: the layer's slots, new tokens included.
        new: number of new tokens.
        query: ``[B, H, new, D]``; gives number of heads, dtype and device.
        plain: no slot is empty or biased.

    Returns:
        None where attention needs no mask; else an additive mask in the query's dtype, ``[1, 1, new, N]`` for a plain
        state and ``[B, H, new, N]`` for any other. Never a boolean one: eager attention would add it to the logits as
        0 and 1. A bias per KV head is expanded to all query heads: attention would broadcast it over the wrong axis
        without complaint.
    """
    if plain and new == 1:
        return None
    width = state.width
    slots = torch.arange(width, device=query.device)
    own = width - new + torch.arange(new, device=query.device)
    causal = slots[None, :] <= own[:, None]
    if plain:
        mask = torch.zeros(causal.shape, dtype=query.dtype, device=query.device)
        return mask.masked_fill_(~causal, -torch.inf)[None, None]
    groups = query.shape[1] // state.keys.shape[1]
    bias = state.bias.repeat_interleave(groups, dim=1)[:, :, None]
    mask = bias.masked_fill(~causal, -torch.inf)
    # A padding token sees itself: a row without any visible slot has no softmax, and its NaN would spread.
    diagonal = slots[None, :] == own[:, None]
    return torch.where(diagonal & (mask == -torch.inf), 0.0, mask).to(query.dtype)
