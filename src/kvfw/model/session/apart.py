"""A probe's attention, computed over the cache and over the probe's own tokens apart.

No query sees a later token of the probe, so that with one call for both half of the own part would be thrown away; and
the totals of both say at once how much attention each slot of the cache received.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvfw.core.state.state import KVState
from kvfw.model.compat.totals import attention_and_totals, has_totals
from kvfw.model.session.attend import by_head


@dataclass(frozen=True)
class Apart:
    """Attention of a probe's queries.

    Attributes:
        output: ``[B, n, H, D]``, as attention functions return it.
        totals: log of every query's sum of ``exp(logit)`` over the cache and the probe, ``[B, H, n]`` float32.
    """

    output: Tensor
    totals: Tensor


def separable(base: str, held: KVState, query: Tensor, value: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether plain attention over ``held`` and over the probe's own tokens is what the model computes.

    What its mask says is left to :func:`whole_and_causal`.
    """
    plain = bool(held.valid.all()) and not bool(held.bias.any())
    return has_totals(query.device) and by_head(base, kwargs) and query.shape[-1] == value.shape[-1] and plain


def whole_and_causal(mask: Tensor | None, held: int, count: int) -> bool:
    """Whether each of ``count`` tokens sees all ``held`` slots, itself and the tokens before it, and nothing else."""
    if mask is None or mask.shape[-2:] != (count, held + count):
        return False
    seen = mask if mask.dtype == torch.bool else mask == 0
    causal = torch.ones(count, count, dtype=torch.bool, device=mask.device).tril()
    return bool(seen[..., :held].all()) and bool((seen[..., held:] == causal).all())


def attended_apart(query: Tensor, key: Tensor, value: Tensor, held: int, scale: float) -> Apart:
    """Attention ``[B, H, n, D]`` over the first ``held`` keys and, causally, over the n that follow."""
    each = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(each, dim=1) if each > 1 else part for part in (key, value))
    parts = [
        attention_and_totals(query, keys[:, :, some], values[:, :, some], scale, causal=causal)
        for some, causal in ((slice(held), False), (slice(held, None), True))
    ]
    totals = torch.logaddexp(*(each for _, each in parts))
    output = sum(out * (own - totals).exp()[..., None].to(out.dtype) for out, own in parts)
    assert isinstance(output, Tensor)
    return Apart(output.transpose(1, 2), totals)
