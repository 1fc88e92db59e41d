"""How much attention every key received from all queries, exactly, without an n x n matrix in memory."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.state import KVState

#: Elements of the largest block of attention held at once: 16 MiB of float32.
BLOCK_ELEMENTS = 2**22


def column_sums(
    queries: Float[Tensor, "B H n Dk"],
    query_positions: Float32[Tensor, "B n"],
    state: KVState,
    scale: float,
    locals_: tuple[int, ...],
) -> dict[int, Float32[Tensor, "B Hkv N"]]:
    """``sum_i A_ij`` over the given queries, mean over the query heads of each KV head, for several distances.

    ``A = softmax(scale * Q K^T + bias)`` over all slots a query may see (position <= the query's), in float32. For a
    distance ``n`` only pairs with ``p_i - p_j >= n`` are summed; 0 sums all. Queries are taken block by block:
    O(block x N) memory. Keys later than a block's last query are never multiplied.

    Args:
        queries: rotated queries of a prompt, or of one chunk of it.
        query_positions: their positions; -1 for padding, which is left out.
        state: the slots up to and including these queries' own tokens, ordered by position.
        scale: what the model multiplies query-key products by.
        locals_: the distances.
    """
    batch, heads, count, dim = queries.shape
    kv_heads, width = state.keys.shape[1], state.width
    groups = heads // kv_heads
    sums = {n: torch.zeros(batch, kv_heads, width, device=queries.device) for n in locals_}
    keys = state.keys.float().transpose(-1, -2)
    rows = max(1, BLOCK_ELEMENTS // (batch * heads * width))
    for start in range(0, count, rows):
        block = slice(start, min(start + rows, count))
        positions = query_positions[:, block]
        # The slots are ordered, so everything a block may see lies in a prefix.
        end = int((state.positions <= positions.amax()).any(dim=(0, 1)).nonzero().amax()) + 1
        grouped = queries[:, :, block].float().reshape(batch, kv_heads, -1, dim)
        logits = (grouped @ keys[..., :end]).mul_(scale).view(batch, kv_heads, groups, -1, end)
        logits += state.bias[:, :, None, None, :end]
        distance = positions[:, None, :, None] - state.positions[:, :, None, :end]
        logits.masked_fill_((distance < 0)[:, :, None], -torch.inf)
        weights = logits.softmax(dim=-1)
        # A padding query sees nothing, and its softmax is NaN.
        weights.masked_fill_((positions < 0)[:, None, None, :, None], 0.0)
        seen = weights.mean(dim=2)
        for n, total in sums.items():
            total[..., :end] += (seen if n == 0 else seen.masked_fill(distance < n, 0.0)).sum(dim=2)
    return sums
