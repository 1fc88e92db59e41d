"""How much attention every slot received from given queries, exactly, without an n x n matrix in memory."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from kvfw.core.parallel import at_once
from kvfw.core.state import KVState

#: Elements of the largest block of attention that a thread holds at once: on a CPU 2 MiB of float32, which stay in a
#: core's cache; on an accelerator 64 MiB, so that its work is not made of launches.
BLOCK_ELEMENTS, ACCELERATOR_BLOCK_ELEMENTS = 2**19, 2**24
#: Logits are taken to base 2, as ``exp(x) = 2^(x log2 e)``: on an AMD EPYC torch's powers of two take a third of the
#: time of its powers of e.
LOG2_E = 1 / math.log(2)
#: A CPU's threads take whole strands of blocks, from so many logits on: fewer are not worth starting threads.
STRANDS, FEWEST_LOGITS = 12, 2**22


@dataclass(frozen=True)
class _Block:
    """Queries ``start:stop``; they see no slot from ``end`` on, and all of them see every slot before ``seen``."""

    start: int
    stop: int
    seen: int
    end: int


@dataclass(frozen=True)
class _Attention:
    """Queries, slots, and how much attention they pay; all logits to base 2.

    Attributes:
        queries: rotated queries.
        positions: theirs; -1 for padding.
        keys: the slots' keys, side by side.
        slots: the slots' positions.
        scale: what products are multiplied by.
        cap: cap of a logit, where the model has one.
        bias: added to a slot's logits, where any slot has one.
        sinks: logit of every head's own sink, where it has one.
        blind: the queries that see no slot, where there are any.
        together: how many KV heads a part takes.
        elements: greatest number of logits of a part.
    """

    queries: Float[Tensor, "B H n Dk"]
    positions: Float32[Tensor, "B n"]
    keys: Float32[Tensor, "B Hkv Dk N"]
    slots: Float32[Tensor, "B Hkv 1 1 N"]
    scale: float
    cap: float | None
    bias: Float32[Tensor, "B Hkv N"] | None
    sinks: Float32[Tensor, "Hkv g 1 1"] | None
    blind: Bool[Tensor, "B Hkv n"] | None
    together: int
    elements: int

    def received(
        self, parts: Sequence[tuple[_Block, int]], distances: tuple[int, ...]
    ) -> dict[int, Float32[Tensor, "B Hkv N"]]:
        """What slots received by distance, over a KV head's query heads, from blocks each with its first KV head."""
        batch, kv_heads, dim, width = self.keys.shape
        group = self.queries.shape[1] // kv_heads
        sums = {n: self.keys.new_zeros(batch, kv_heads, width) for n in distances}
        # Asked for once: memory fresh from the system costs more than what is done in it.
        memory, row = self.keys.new_empty(self.elements), self.keys.new_empty(batch * self.together * width)
        for block, first in parts:
            rows, some, end = slice(block.start, block.stop), slice(first, first + self.together), block.end
            at = self.positions[:, None, None, rows, None]
            scaled = self.queries[:, first * group : (first + self.together) * group, rows].float() * self.scale
            scaled = scaled.reshape(batch, self.together, -1, dim)
            shape = (*scaled.shape[:3], end)
            logits = torch.matmul(scaled, self.keys[:, some, :, :end], out=memory[: math.prod(shape)].view(shape))
            if self.cap is not None:
                logits = logits.div_(self.cap).tanh_().mul_(self.cap)
            if self.bias is not None:
                logits += self.bias[:, some, None, :end]
            logits = logits.view(batch, self.together, group, -1, end)
            between = self.slots[:, some, ..., block.seen : end]
            logits[..., block.seen :].masked_fill_(between > at, -torch.inf)
            # A row of attention is 2^(x - top) times one factor, which is taken along when rows are added up.
            top = logits.amax(dim=-1, keepdim=True)
            powers = logits.sub_(top).exp2_()
            total = powers.sum(dim=-1)
            if self.sinks is not None:
                # Infinite where a sink is so large that it takes all.
                total += (self.sinks[some] - top).exp2_().squeeze(-1)
            factor = total.reciprocal_()
            if self.blind is not None:
                # What sees nothing has no largest logit.
                unseen = self.blind[:, some, None, rows]
                powers.masked_fill_(unseen[..., None], 0.0)
                factor.masked_fill_(unseen, 0.0)
            factor = factor.flatten(2)[:, :, None]
            for n, added in sums.items():
                far = powers if n == 0 else powers.masked_fill(at - self.slots[:, some, ..., :end] < n, 0.0)
                # Into memory of float32, which autocast leaves alone.
                into = row[: batch * self.together * end].view(batch, self.together, 1, end)
                added[:, some, :end] += torch.matmul(factor, far.flatten(2, 3), out=into).squeeze(2)
        return sums


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
    kv_heads, width = state.keys.shape[1], state.width
    group = queries.shape[1] // kv_heads
    batch, count = query_positions.shape
    # Padding sees nothing; nor does an earlier query after everything up to its position was evicted.
    earliest = state.positions.masked_fill(~state.valid, torch.inf).amin(-1, keepdim=True)
    sightless = query_positions[:, None] < earliest
    together, elements = _block_size(queries.device, kv_heads)
    rows_each = max(1, min(elements // (batch * group * together * width), count))
    attention = _Attention(
        queries=queries,
        positions=query_positions,
        # What is no token may be NaN, which a bias of minus infinity does not hide.
        keys=_of_tokens(state).float().transpose(-1, -2),
        slots=state.positions[:, :, None, None],
        scale=scale * LOG2_E,
        cap=None if softcap is None else softcap * LOG2_E,
        bias=state.bias * LOG2_E if bool((state.bias != 0).any()) else None,
        sinks=None if sink_logits is None else sink_logits.float().view(kv_heads, group, 1, 1) * LOG2_E,
        blind=sightless if bool(sightless.any()) else None,
        together=together,
        elements=batch * group * together * rows_each * width,
    )
    parts = list(itertools.product(_blocks(query_positions, state, rows_each), range(0, kv_heads, together)))
    logits = batch * group * together * sum((block.stop - block.start) * block.end for block, _ in parts)
    # How parts add up shows in the last digits: as many strands for any number of threads.
    strands = STRANDS if queries.device.type == "cpu" and logits >= FEWEST_LOGITS else 1
    added = at_once(
        lambda strand: attention.received(parts[strand::strands], distances), range(strands), queries.device
    )
    return {n: torch.stack([sums[n] for sums in added]).sum(0) / group for n in distances}


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
