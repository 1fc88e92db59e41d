"""Folds the slots that are not kept into slots that are: the code of mergers that keep tokens in their places."""

from dataclasses import dataclass, replace
from typing import Final

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from kvfw.core.ops.topk import highest
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState

#: Slots compared with the kept ones at once, so that memory grows with the prompt's length alone.
BLOCK: Final = 256


def heaviest(
    state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]
) -> Bool[Tensor, "B Hkv N"]:
    """The ``budget`` valid slots of most weight in every head, ties to the lowest: those that are kept."""
    return highest(weights.float(), budget, state.valid)


@dataclass(frozen=True)
class Nearest:
    """For every slot the kept slot whose key is most like its own, and how like it is.

    Attributes:
        target: index of that slot; a kept slot's own index.
        cosine: cosine of the two keys; 1 for kept slots, -1 where nothing is kept.
    """

    target: Int64[Tensor, "B Hkv N"]
    cosine: Float32[Tensor, "B Hkv N"]


def nearest_kept(state: KVState, kept: Bool[Tensor, "B Hkv N"]) -> Nearest:
    """Compares keys head by head; ties go to the lowest slot."""
    keys = torch.nn.functional.normalize(state.keys.float().masked_fill(~state.valid[..., None], 0.0), dim=-1)
    own = torch.arange(state.width, device=keys.device)
    target, cosine = torch.zeros_like(kept, dtype=torch.int64), torch.full_like(keys[..., 0], -1.0)
    for row in range(keys.shape[0]):
        for head in range(keys.shape[1]):
            among = kept[row, head].nonzero()[:, 0]
            if not len(among):
                continue
            for some in torch.split(own, BLOCK):
                like, which = (keys[row, head, some] @ keys[row, head, among].T).max(-1)
                cosine[row, head, some], target[row, head, some] = like, among[which]
    return Nearest(torch.where(kept, own, target), torch.where(kept, 1.0, cosine.clamp(-1, 1)))


def next_kept(kept: Bool[Tensor, "B Hkv N"]) -> Int64[Tensor, "B Hkv N"]:
    """For every slot the next kept slot, its own if it is kept; the last kept slot where none follows."""
    own = torch.arange(kept.shape[-1], device=kept.device).expand_as(kept)
    far = kept.shape[-1]
    ahead = torch.where(kept, own, far).flip(-1).cummin(-1).values.flip(-1)
    last = torch.where(kept, own, 0).amax(-1, keepdim=True)
    return torch.where(ahead == far, last, ahead)


def folded(
    state: KVState,
    kept: Bool[Tensor, "B Hkv N"],
    target: Int64[Tensor, "B Hkv N"],
    joins: Bool[Tensor, "B Hkv N"],
    key_weights: Float[Tensor, "B Hkv N"],
    value_weights: Float[Tensor, "B Hkv N"],
) -> KVState:
    """The kept slots, each with the weighted mean of its own and the joining slots' keys and values.

    Positions and biases are those of the kept slots, masses add up. A slot that nothing joins comes back bit for bit,
    and so do keys and values whose other weights are 0. Rows and heads do not influence each other.

    Args:
        state: the slots.
        kept: those that stay.
        target: for every slot the kept slot it is folded into.
        joins: slots that are folded; what is neither kept nor joins is dropped.
        key_weights, value_weights: weights of the means, 0 or more; those of kept slots above 0.
    """
    joins = joins & state.valid & ~kept
    taking_part = (joins | kept).to(torch.float32)

    def sums(x: Float[Tensor, "B Hkv N"]) -> Float[Tensor, "B Hkv N"]:
        return torch.zeros_like(x).scatter_add(2, target, x)

    def means(x: Float[Tensor, "B Hkv N D"], weights: Float[Tensor, "B Hkv N"]) -> Float[Tensor, "B Hkv N D"]:
        weights = weights.float() * taking_part
        joined = sums(weights * joins)
        share = weights / sums(weights).gather(2, target).clamp(min=torch.finfo(torch.float32).tiny)
        at = target[..., None].expand_as(x)
        whole = torch.zeros_like(x).scatter_add(2, at, share[..., None] * x.masked_fill(~state.valid[..., None], 0.0))
        return torch.where((kept & (joined > 0))[..., None], whole, x)

    mass = state.mass + sums(state.mass * joins)
    new = replace(state, keys=means(state.keys, key_weights), values=means(state.values, value_weights), mass=mass)
    return take(new, kept)
