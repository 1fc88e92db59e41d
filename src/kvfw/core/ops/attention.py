"""Attention that a few given queries pay to the slots of a state. Never more than the given rows is computed."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.observation import Observation


def window_attention(obs: Observation) -> Float32[Tensor, "B Hkv N"]:
    """Mean attention from the observed last queries to every slot, averaged over each KV head's query heads.

    ``softmax(scale * Q[-w:] K^T + bias)`` over all slots a query may see (slot position <= query position), in
    float32; mean over the ``w`` real queries, then over the ``g`` query heads of a KV head. KV heads are never
    repeated. Empty slots get 0.

    Raises:
        RunError: the last queries were not asked for.
    """
    queries, query_positions = obs.window()
    state = obs.state
    batch, heads, window, dim = queries.shape
    kv_heads = state.keys.shape[1]
    grouped = queries.float().reshape(batch, kv_heads, heads // kv_heads * window, dim)
    logits = (grouped @ state.keys.float().transpose(-1, -2)) * obs.scale
    logits = logits.view(batch, kv_heads, heads // kv_heads, window, state.width)
    visible = state.positions[:, :, None] <= query_positions[:, None, :, None]
    logits = logits + state.bias[:, :, None, None]
    weights = logits.masked_fill_(~visible[:, :, None], -torch.inf).softmax(dim=-1)
    real = (query_positions >= 0).to(weights.dtype)[:, None, None, :, None]
    # A padding query sees nothing and its softmax is NaN: drop the row instead of multiplying by 0.
    weights = torch.where(real > 0, weights, torch.zeros_like(weights))
    return (weights.sum(dim=3) / real.sum(dim=3)).mean(dim=2)


def pool_middle(scores: Float[Tensor, "B Hkv N"], obs: Observation, kernel: int, pool: str) -> Float[Tensor, "B Hkv N"]:
    """1-D pooling over the middle only, stride 1, padding ``kernel // 2``; average pooling counts the zero padding.

    Protected slots count as padding (pooling over them would leak the sinks' huge attention into their neighbours)
    and get 0. ``scores`` must not be negative, so that 0 is neutral for max pooling too.
    """
    inside = scores.masked_fill(~obs.middle, 0.0)
    if kernel > 1:
        operation = torch.nn.functional.avg_pool1d if pool == "avg" else torch.nn.functional.max_pool1d
        inside = operation(inside, kernel_size=kernel, stride=1, padding=kernel // 2)
    return inside.masked_fill(~obs.middle, 0.0)
