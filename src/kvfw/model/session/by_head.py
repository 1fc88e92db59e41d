"""Attention over heads of different sizes, one head after the other, without a padded copy."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvfw.model.cache.storage import HeadSlots


def attention_by_head(heads: Sequence[HeadSlots], query: Tensor, scaling: float | None) -> Tensor:
    """Attention ``[B, n, H, Dv]`` of new tokens, whose slots are the last of every head.

    The same as over the padded form, to rounding: every slot before the new tokens is visible, these are causal among
    themselves, and biases are added.

    Args:
        heads: the slots of every KV head, row by row.
        query: ``[B, H, n, Dk]``.
        scaling: factor on query-key products; None: ``Dk ** -0.5``.
    """
    batch, all_heads, count, dim = query.shape
    grouped = torch.split(query.reshape(len(heads), -1, count, dim), 1)
    causal = None
    if count > 1:
        # Right-aligned: a head's own mask are the last columns.
        longest = max(len(head.keys) for head in heads)
        causal = torch.full((count, longest), -torch.inf, device=query.device).triu_(longest - count + 1)
    outputs = []
    for own, (keys, values, bias) in zip(grouped, heads, strict=True):
        mask = None if causal is None else causal[:, -len(keys) :]
        if bias is not None:
            mask = _biased(bias, count, mask)
        shape = (1, own.shape[1], -1, -1)
        outputs.append(
            scaled_dot_product_attention(
                own,
                keys.expand(shape),
                values.expand(shape),
                attn_mask=None if mask is None else mask.to(query.dtype),
                scale=scaling,
            )
        )
    joined = torch.cat(outputs)
    return joined.view(batch, all_heads, count, joined.shape[-1]).transpose(1, 2).contiguous()


def _biased(bias: Tensor, count: int, causal: Tensor | None) -> Tensor:
    """The mask ``[n, L]`` of a head with biases. A padding token sees itself, so that no row of the softmax is NaN."""
    mask = bias[None] if causal is None else causal + bias
    own = mask[:, -count:]
    seen = torch.eye(count, dtype=torch.bool, device=mask.device) & (own == -torch.inf)
    return torch.cat((mask[:, :-count], own.masked_fill(seen, 0.0)), dim=1)
