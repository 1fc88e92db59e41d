"""Attention without a causal mask, inside chunks of tokens."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.state.observation import Observation


@torch.no_grad()
def chunk_columns(obs: Observation, chunk: int, scale: float) -> Float32[Tensor, "B Hkv N"]:
    """Attention every slot of the middle receives from all queries of its chunk, earlier and later ones.

    Positions 0 to ``chunk - 1`` are the first chunk, and so on. In each, ``A = softmax(cap(scale Q K^T) + bias)`` over
    the slots of the middle, from the queries between its first and its last slot, in float32; the result is
    ``sum_i A_ij``, mean over a KV head's query heads; 0 outside the middle. The model's own sinks take no part. Row by
    row, so that no row depends on others; O(chunk^2) memory per head.

    Raises:
        RunError: the part does not declare ``Needs(queries="all")``.
    """
    queries, at = obs.window()
    found = torch.zeros_like(obs.state.bias)
    outside = ~obs.middle
    slots = (obs.state.positions // chunk).masked_fill(outside, -1)
    first = obs.state.positions.masked_fill(outside, torch.inf).amin((1, 2))[:, None]
    last = obs.state.positions.masked_fill(outside, -1.0).amax((1, 2))[:, None]
    asking = (at // chunk).masked_fill((at < first) | (at > last), -1)
    for row in range(len(found)):
        for number in asking[row].unique().tolist():
            if number >= 0:
                here = slots[row] == number
                columns = here.any(0).nonzero()[:, 0]
                some = queries[row][:, asking[row] == number]
                found[row, :, columns] = _received(obs, row, some, columns, scale).masked_fill(~here[:, columns], 0.0)
    return found


def _received(
    obs: Observation, row: int, queries: Float[Tensor, "H n D"], columns: Tensor, scale: float
) -> Float32[Tensor, "Hkv m"]:
    """Column sums of one chunk's attention."""
    keys, bias, inside = (x[row][:, columns] for x in (obs.state.keys, obs.state.bias, obs.middle))
    keys = keys.float().masked_fill(~inside[..., None], 0.0)
    heads = keys.shape[0]
    logits = (queries.float() * scale).reshape(heads, -1, queries.shape[-1]) @ keys.mT
    if obs.softcap is not None:
        logits = obs.softcap * (logits / obs.softcap).tanh()
    logits = (logits + bias[:, None]).masked_fill(~inside[:, None], -torch.inf)
    # A head without slots in this chunk has rows of NaN.
    return logits.softmax(-1).nan_to_num(0.0).sum(1) * (heads / queries.shape[0])
