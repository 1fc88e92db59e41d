"""Attention rows of the last queries, KV head by KV head, for what a sum over queries does not tell."""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from kvfw.core.state.observation import Observation


@torch.no_grad()
def window_rows(obs: Observation) -> Iterator[Float32[Tensor, "B g w N"]]:
    """The attention of every observed last query to every slot, for the query heads of one KV head after another.

    ``softmax(cap(scale * Q[-w:] K^T) + bias)`` over all slots a query may see (slot position <= query position), in
    float32, with the model's own cap and sinks. Padding, empty slots and queries that see nothing have rows of 0. One
    KV head at a time is in memory. Raises a RunError if the last queries were not declared.
    """
    kv_heads = obs.state.keys.shape[1]
    sinks = None if obs.sink_logits is None else obs.sink_logits.float().view(kv_heads, -1)
    for head, (logits, visible) in enumerate(_logits(obs)):
        logits = (logits + obs.state.bias[:, head, None, None]).masked_fill(~visible[:, None], -torch.inf)
        if sinks is not None:
            own = sinks[head][:, None, None].expand(*logits.shape[:-1], 1)
            logits = torch.cat((logits, own.to(logits)), -1)
        weights = torch.softmax(logits, -1)[..., : obs.state.width]
        yield weights.masked_fill(~visible[:, None], 0.0)


@torch.no_grad()
def joint_rows(obs: Observation, over: Literal["max", "sum"]) -> Iterator[Float32[Tensor, "B w N"]]:
    """Attention of every observed last query, were the query heads of a KV head one, for one KV head after another.

    ``softmax_j(reduction over the group of cap(scale * q_i.k_j) + bias)`` over the slots that a query may see, without
    those after the middle. Padding and queries that see nothing have rows of 0. The model's own sinks take no part.
    """
    state = obs.state
    last = state.positions.masked_fill(~obs.middle, -1.0).amax(-1, keepdim=True)
    before = state.positions <= last
    for head, (logits, visible) in enumerate(_logits(obs)):
        visible = visible & before[:, head, None]
        joint = (logits.amax(1) if over == "max" else logits.sum(1)) + state.bias[:, head, None]
        yield torch.softmax(joint.masked_fill(~visible, -torch.inf), -1).masked_fill(~visible, 0.0)


def _logits(obs: Observation) -> Iterator[tuple[Float32[Tensor, "B g w N"], Bool[Tensor, "B w N"]]]:
    """Scaled and capped products of one KV head after another, and which slots each query may see."""
    queries, positions = obs.window()
    state = obs.state
    kv_heads, (batch, _, window, dim) = state.keys.shape[1], queries.shape
    grouped = queries.float().reshape(batch, kv_heads, -1, window, dim) * obs.scale
    for head in range(kv_heads):
        valid = state.valid[:, head]
        # Keys of empty slots may be NaN, which a bias of minus infinity does not hide.
        keys = state.keys[:, head].float().masked_fill(~valid[..., None], 0.0)
        # Each row by itself, in memory of its own: how products round depends on where in a batch a row lies.
        pairs = zip(torch.split(grouped[:, head], 1), torch.split(keys[:, None], 1), strict=True)
        logits = torch.cat([own.clone() @ its.clone().transpose(-1, -2) for own, its in pairs])
        if obs.softcap is not None:
            logits = obs.softcap * (logits / obs.softcap).tanh()
        yield logits, (state.positions[:, head, None] <= positions[..., None]) & valid[:, None]


def row_entropies(rows: Float32[Tensor, "B g w N"]) -> Float64[Tensor, "B g w"]:
    """``-sum_j a_j ln a_j`` of every row, with 0 ln 0 = 0; rows need not sum to 1."""
    entropies: Tensor = -torch.special.xlogy(rows, rows).sum(-1, dtype=torch.float64)
    return entropies


def column_variances(rows: Float32[Tensor, "B g w N"], counted: Bool[Tensor, "B w"]) -> Float64[Tensor, "B g N"]:
    """The unbiased variance, over the counted queries, of the attention each slot received; 0 for fewer than two."""
    inside = counted[:, None, :, None].to(torch.float64)
    count = inside.sum(2, keepdim=True)
    wide = rows.to(torch.float64)
    away = (wide - (wide * inside).sum(2, keepdim=True) / count.clamp(min=1)) * inside
    return away.square().sum(2) / (count[:, :, 0] - 1).clamp(min=1)
