"""The attention mask of a compressed layer, built from its state."""

import torch
from torch import Tensor

from kvfw.core.state.state import KVState


def layer_mask(state: KVState, new: int, query: Tensor, *, plain: bool) -> Tensor | None:
    """The additive mask for ``new`` tokens, the last slots of ``state``; None where attention needs none.

    Every valid stored slot is visible, new tokens are causal among themselves, and biases are added. The mask has the
    dtype of ``query`` ``[B, H, new, D]`` and the shape ``[1, 1, new, N]`` if the state is ``plain`` (no slot is empty
    or biased), else ``[B, H, new, N]``. It is never boolean: eager attention would add that to the logits as 0 and 1.
    Biases per KV head are expanded to query heads: attention would silently broadcast them over the wrong axis.
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
    # A padding token sees itself: the softmax of a row without visible slots is NaN, which would spread.
    diagonal = slots[None, :] == own[:, None]
    return torch.where(diagonal & (mask == -torch.inf), 0.0, mask).to(query.dtype)
