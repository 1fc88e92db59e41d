"""How much attention every slot received from given queries, exactly, without an n x n matrix in memory."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.state.state import KVState

#: Elements of the largest block of attention held at once: on a CPU 2 MiB of float32, which stay in a core's cache; on
#: an accelerator 64 MiB, so that its work is not made of launches.
BLOCK_ELEMENTS, ACCELERATOR_BLOCK_ELEMENTS = 2**19, 2**24


@dataclass(frozen=True)
class _Block:
    """Queries ``start:stop``; they see no slot from ``end`` on, and all of them see every slot before ``seen``."""

    start: int
    stop: int
    seen: int
    end: int


@torch.no_grad()
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
    """``sum_i A_ij`` over the given queries, mean over the query heads of each KV head, for several distances.

    ``A = softmax(cap(scale * Q K^T) + bias)`` over all slots a query may see (slot position <= query position), in
    float32; ``cap(x) = c tanh(x / c)`` where the model caps its logits, else x. A head with a sink of its own has
    one more logit in the denominator, so that its row of A sums to less than 1.
    Products and sums have float32's precision as torch has it set: with TF32 switched on they have TF32's.
    For a distance ``n`` only pairs at least n positions apart are summed; 0 sums all. Queries are taken block by block:
    O(block x N) memory. KV heads are never repeated, slots later than a block's last query are never multiplied, and
    only slots between its first and its last are masked. A query that sees no slot adds nothing. The sums are
    statistics: no gradient flows through them.

    Args:
        queries: rotated queries, in order of position.
        query_positions: their positions; -1 for padding, which is left out.
        state: the slots, those of the queries' own tokens included.
        scale: what the model multiplies query-key products by.
        distances: the distances.
        softcap: the cap ``c``, where the model has one.
        sink_logits: logit of every query head's own sink, where it has one.
    """
    batch, heads, count, dim = queries.shape
    kv_heads, width = state.keys.shape[1], state.width
    group = heads // kv_heads
    sums = {n: queries.new_zeros(batch, kv_heads, width, dtype=torch.float32) for n in distances}
    # What is no token may be NaN, which a bias of minus infinity does not hide.
    keys = _of_tokens(state).float().transpose(-1, -2)
    bias = state.bias if bool((state.bias != 0).any()) else None
    # Padding sees nothing; nor does an earlier query after everything up to its position was evicted.
    earliest = state.positions.masked_fill(~state.valid, torch.inf).amin(-1, keepdim=True)
    sightless = query_positions[:, None] < earliest
    blind = sightless if bool(sightless.any()) else None
    slots = state.positions[:, :, None, None]
    sinks = None if sink_logits is None else sink_logits.float().view(kv_heads, group, 1, 1)
    together, elements = _block_size(queries.device, kv_heads)
    rows_each = max(1, min(elements // (batch * group * together * width), count))
    # Asked for once: memory fresh from the system costs more than what is done in it.
    memory = queries.new_empty(batch * group * together * rows_each * width, dtype=torch.float32)
    for block, first in itertools.product(_blocks(query_positions, state, rows_each), range(0, kv_heads, together)):
        rows, some, end = slice(block.start, block.stop), slice(first, first + together), block.end
        at = query_positions[:, None, None, rows, None]
        scaled = queries[:, first * group : (first + together) * group, rows].float() * scale
        scaled = scaled.reshape(batch, together, -1, dim)
        shape = (*scaled.shape[:3], end)
        logits = torch.matmul(scaled, keys[:, some, :, :end], out=memory[: math.prod(shape)].view(shape))
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        if bias is not None:
            logits += bias[:, some, None, :end]
        logits = logits.view(batch, together, group, -1, end)
        between = slots[:, some, ..., block.seen : end]
        logits[..., block.seen :].masked_fill_(between > at, -torch.inf)
        # What a sink leaves of a row.
        share = None if sinks is None else (logits.logsumexp(dim=-1, keepdim=True) - sinks[some]).sigmoid_()
        weights = torch.softmax(logits, dim=-1, out=logits)
        if share is not None:
            weights *= share
        if blind is not None:
            # What sees nothing has no largest logit.
            weights.masked_fill_(blind[:, some, None, rows, None], 0.0)
        for n, received in sums.items():
            far = weights if n == 0 else weights.masked_fill(at - slots[:, some, ..., :end] < n, 0.0)
            # Not a product of matrices: that rounds a row of a batch by where it lies in memory.
            received[:, some, :end] += far.flatten(2, 3).sum(dim=2)
    return {n: received / group for n, received in sums.items()}


def _of_tokens(state: KVState) -> Float[Tensor, "B Hkv N Dk"]:
    """The keys, zero where a slot is empty."""
    return state.keys if bool(state.valid.all()) else state.keys.masked_fill(~state.valid[..., None], 0.0)


def _block_size(device: torch.device, kv_heads: int) -> tuple[int, int]:
    """How many KV heads a block takes, and how many elements of attention it may have.

    A CPU multiplies many rows by the keys of one head faster than few rows by those of all heads; an accelerator wants
    all at once.
    """
    return (1, BLOCK_ELEMENTS) if device.type == "cpu" else (kv_heads, ACCELERATOR_BLOCK_ELEMENTS)


def _blocks(query_positions: Float32[Tensor, "B n"], state: KVState, rows: int) -> Iterator[_Block]:
    """The queries in blocks of ``rows``; blocks of padding only, or before every slot, are left out."""
    starts = list(range(0, query_positions.shape[1], rows))
    parts = torch.split(query_positions, rows, dim=1)
    first = torch.stack([part.masked_fill(part < 0, torch.inf).amin() for part in parts])
    last = torch.stack([part.amax() for part in parts])
    # Positions ascend in every head, so the earliest and the latest of all heads ascend, too. Padding of a later turn
    # stands between slots, at position -1; it counts as where the slot before it stands, and its bias hides it.
    ascending = state.positions.cummax(-1).values
    seen = torch.searchsorted(ascending.amax((0, 1)), first, right=True)
    end = torch.searchsorted(ascending.amin((0, 1)), last, right=True)
    table = zip(starts, parts, last.tolist(), seen.tolist(), end.tolist(), strict=True)
    for start, part, latest, before, after in table:
        if latest >= 0 and after > 0:
            yield _Block(start, start + part.shape[1], before, after)
