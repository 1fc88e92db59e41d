"""Exact attention received by every slot from given queries, without an n x n matrix in memory."""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.state.observation import Columns
from kvfw.core.state.state import KVState

#: Elements of the largest block of attention held at once: on a CPU 2 MiB of float32, which fit a core's cache; on an
#: accelerator 64 MiB, so that kernel launches do not dominate.
BLOCK_ELEMENTS, ACCELERATOR_BLOCK_ELEMENTS = 2**19, 2**24


@dataclass(frozen=True)
class _Block:
    """Queries ``start:stop``. All of them see every slot before ``seen``; none sees a slot from ``end`` on."""

    start: int
    stop: int
    seen: int
    end: int


def column_sums(
    queries: Float[Tensor, "B H n Dk"],
    query_positions: Float32[Tensor, "B n"],
    state: KVState,
    scale: float,
    distances: tuple[int, ...],
    *,
    softcap: float | None = None,
    sink_logits: Float[Tensor, " H"] | None = None,
) -> dict[int, Float32[Tensor, "B Hkv N"]]:
    """``sum_i A_ij``, mean over the query heads of each KV head, by distance; see :func:`attention_columns`."""
    wanted = {n: Columns(n) for n in distances}
    asked = tuple(wanted.values())
    found = attention_columns(queries, query_positions, state, scale, asked, softcap=softcap, sink_logits=sink_logits)
    return {n: found[columns] for n, columns in wanted.items()}


@torch.no_grad()
def attention_columns(
    queries: Float[Tensor, "B H n Dk"],
    query_positions: Float32[Tensor, "B n"],
    state: KVState,
    scale: float,
    wanted: Collection[Columns],
    *,
    softcap: float | None = None,
    sink_logits: Float[Tensor, " H"] | None = None,
    norms: Float32[Tensor, "B n"] | None = None,
    totals: Float32[Tensor, "B H n"] | None = None,
) -> dict[Columns, Float32[Tensor, "B heads N"]]:
    """Reductions over the given queries of the attention every slot received.

    ``A = softmax(cap(scale * Q K^T) + bias)`` over all slots a query may see (slot position <= query position), in
    float32 (TF32 where torch has it switched on); ``cap(x) = c tanh(x / c)`` if the model caps its logits, else x. A
    head with its own sink has one more logit in the denominator, so its rows of A sum to less than 1. For a distance
    ``n`` only pairs at least n positions apart count; 0 counts all. Queries are processed in blocks: O(block x N)
    memory. KV heads are never repeated, slots later than a block's last query are never multiplied, and only slots
    between its first and its last are masked. A query that sees no slot adds nothing. No gradient flows.

    Args:
        queries: rotated queries, in order of position.
        query_positions: their positions; -1 for padding, which is left out.
        state: the slots, including those of the queries' own tokens.
        scale: the model's factor on query-key products.
        wanted: the reductions; their source is not looked at.
        softcap: the cap ``c``; None if the model has none.
        sink_logits: logit of each query head's own sink; None if the model has none.
        norms: norm of each query token's hidden state, for reductions ``per_norm``.
        totals: log of each query's sum of ``exp(logit)`` over all that it sees, these slots among it; by default
            these slots are all.

    Returns:
        One number per slot and KV head, or per slot and query head where ``heads="each"``.
    """
    batch, heads, count, dim = queries.shape
    kv_heads, width = state.keys.shape[1], state.width
    group = heads // kv_heads
    shapes = {"each": (batch, kv_heads, group, width), "mean": (batch, kv_heads, width)}
    found = {each: queries.new_zeros(shapes[each.heads], dtype=torch.float32) for each in wanted}
    # Keys of empty slots may be NaN, which a bias of minus infinity does not hide.
    keys = state.keys if bool(state.valid.all()) else state.keys.masked_fill(~state.valid[..., None], 0.0)
    keys = keys.float().transpose(-1, -2)
    bias = state.bias if bool((state.bias != 0).any()) else None
    # Padding sees nothing; neither does a query if everything up to its position was evicted.
    blind = query_positions[:, None] < state.positions.masked_fill(~state.valid, torch.inf).amin(-1, keepdim=True)
    any_blind = bool(blind.any())
    slots = state.positions[:, :, None, None]
    sinks = None if sink_logits is None else sink_logits.float().view(kv_heads, group, 1, 1)
    together, elements = _block_size(queries.device, kv_heads)
    rows_each = max(1, min(elements // (batch * group * together * width), count))
    # Allocated once: getting fresh memory from the system costs more than the work done in it.
    memory = queries.new_empty(batch * group * together * rows_each * width, dtype=torch.float32)
    for block, first in itertools.product(_blocks(query_positions, state, rows_each), range(0, kv_heads, together)):
        rows, some, end = slice(block.start, block.stop), slice(first, first + together), block.end
        at = query_positions[:, None, None, rows, None]
        scaled = queries[:, first * group : (first + together) * group, rows].float() * scale
        scaled = scaled.reshape(batch, together, -1, dim)
        room = (*scaled.shape[:3], end)
        logits = torch.matmul(scaled, keys[:, some, :, :end], out=memory[: math.prod(room)].view(room))
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        if bias is not None:
            logits += bias[:, some, None, :end]
        logits = logits.view(batch, together, group, -1, end)
        between = slots[:, some, ..., block.seen : end]
        logits[..., block.seen :].masked_fill_(between > at, -torch.inf)
        if totals is None:
            weights = _softmax(logits, None if sinks is None else sinks[some])
        else:
            own = totals[:, first * group : (first + together) * group, rows]
            weights = logits.sub_(own.reshape(batch, together, group, -1, 1)).exp_()
        if any_blind:  # the softmax of a row that sees nothing is NaN
            weights.masked_fill_(blind[:, some, None, rows, None], 0.0)
        for each, received in found.items():
            near = at - slots[:, some, ..., :end] < each.distance if each.distance else None
            far = weights if near is None else weights.masked_fill(near, 0.0)
            if each.per_norm:
                assert norms is not None, "a reduction per norm needs the norms"
                # A token of hidden state 0 (an embedding of 0, as of padding) has no relative change.
                far = far / norms.masked_fill(norms == 0, torch.inf)[:, None, None, rows, None]
            _reduce(received[:, some, ..., :end], far, each)
    return {each: part.flatten(1, 2) if each.heads == "each" else part / group for each, part in found.items()}


def _softmax(
    logits: Float32[Tensor, "B k g n N"], sinks: Float32[Tensor, "k g 1 1"] | None
) -> Float32[Tensor, "B k g n N"]:
    """In place. A head's own sink leaves the slots a share of each row."""
    share = None if sinks is None else (logits.logsumexp(dim=-1, keepdim=True) - sinks).sigmoid_()
    weights = torch.softmax(logits, dim=-1, out=logits)
    return weights if share is None else weights.mul_(share)


def _reduce(into: Float32[Tensor, "B k *g N"], weights: Float32[Tensor, "B k g n N"], columns: Columns) -> None:
    """Adds a block of attention to a reduction, in place; a mean over the group is a sum until the end."""
    if columns.over == "max":
        torch.maximum(into, weights.amax(3), out=into)
        return
    if columns.over == "square":
        weights = weights.square()
    # Not a matrix product: its rounding depends on where a row of the batch lies in memory.
    into += weights.sum(3) if columns.heads == "each" else weights.flatten(2, 3).sum(dim=2)


def _block_size(device: torch.device, kv_heads: int) -> tuple[int, int]:
    """KV heads per block, and the most elements of attention it may have.

    A CPU is faster with many rows of one head than with few rows of all heads; an accelerator wants all heads at once.
    """
    return (1, BLOCK_ELEMENTS) if device.type == "cpu" else (kv_heads, ACCELERATOR_BLOCK_ELEMENTS)


def _blocks(query_positions: Float32[Tensor, "B n"], state: KVState, rows: int) -> Iterator[_Block]:
    """The queries in blocks of ``rows``, without blocks that are all padding or come before every slot."""
    starts = list(range(0, query_positions.shape[1], rows))
    parts = torch.split(query_positions, rows, dim=1)
    first = torch.stack([part.masked_fill(part < 0, torch.inf).amin() for part in parts])
    last = torch.stack([part.amax() for part in parts])
    # Positions ascend in every head, so the earliest and the latest over all heads ascend too. Padding of a later turn
    # lies between slots at position -1; it is given the position of the slot before it, and its bias masks it.
    ascending = state.positions.cummax(-1).values
    seen = torch.searchsorted(ascending.amax((0, 1)), first, right=True)
    end = torch.searchsorted(ascending.amin((0, 1)), last, right=True)
    table = zip(starts, parts, last.tolist(), seen.tolist(), end.tolist(), strict=True)
    for start, part, latest, before, after in table:
        if latest >= 0 and after > 0:
            yield _Block(start, start + part.shape[1], before, after)
