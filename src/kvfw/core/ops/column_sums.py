"""How much attention every key received from all queries, exactly, without an n x n matrix in memory."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kvfw.core.state import KVState

#: Elements of the largest block of attention held at once: 2 MiB of float32, which stays in a core's cache.
BLOCK_ELEMENTS = 2**19


def column_sums(
    queries: Float[Tensor, "B H n Dk"],
    query_positions: Float32[Tensor, "B n"],
    state: KVState,
    scale: float,
    locals_: tuple[int, ...],
) -> dict[int, Float32[Tensor, "B Hkv N"]]:
    """``sum_i A_ij`` over the given queries, mean over the query heads of each KV head, for several distances.

    ``A = softmax(scale * Q K^T + bias)`` over all slots a query may see, in float32. For a distance ``n`` only pairs at
    least n tokens apart are summed; 0 sums all. Queries are taken block by block: O(block x N) memory. Keys later than
    a block's last query are never multiplied, and only the diagonal block needs a mask.

    Args:
        queries: rotated queries of a prompt, or of one chunk of it; their own tokens are the last n slots.
        query_positions: their positions; -1 for padding, which is left out.
        state: the slots up to and including these queries' own tokens, in order of position.
        scale: what the model multiplies query-key products by.
        locals_: the distances.
    """
    batch, heads, count, dim = queries.shape
    kv_heads, width = state.keys.shape[1], state.width
    groups = heads // kv_heads
    sums = {n: torch.zeros(batch, kv_heads, width, device=queries.device) for n in locals_}
    keys = state.keys.float().transpose(-1, -2)
    bias = state.bias if bool((state.bias != 0).any()) else None
    padded = query_positions < 0 if bool((query_positions < 0).any()) else None
    rows = max(1, BLOCK_ELEMENTS // (batch * heads * width))
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        end = width - count + stop
        block = (queries[:, :, start:stop].float() * scale).reshape(batch, kv_heads, -1, dim)
        logits = block @ keys[..., :end]
        if bias is not None:
            logits += bias[:, :, None, :end]
        logits = logits.view(batch, kv_heads, groups, stop - start, end)
        future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=queries.device).triu(1)
        logits[..., end - (stop - start) :].masked_fill_(future, -torch.inf)
        weights = logits.softmax(dim=-1)
        if padded is not None:
            # A padding query sees nothing, and its softmax is NaN.
            weights.masked_fill_(padded[:, None, None, start:stop, None], 0.0)
        for n, total in sums.items():
            far = weights if n == 0 else weights.tril(end - (stop - start) - n)
            total[..., :end] += far.sum(dim=(2, 3))
    return {n: total / groups for n, total in sums.items()}
