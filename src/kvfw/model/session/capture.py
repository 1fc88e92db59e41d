"""What a later compression may need of a forward: last queries, and the attention that slots received."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.ops.column_sums import column_sums
from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
from kvfw.model.cache.captured import Captured


def captured_after(
    before: Captured, state: KVState, query: Tensor, needs: Needs, kwargs: Mapping[str, Any], *, plain: bool
) -> Captured:
    """What is known of a layer after the queries of its last tokens were seen.

    Args:
        before: what was known.
        state: the layer's slots, new tokens included.
        query: ``[B, H, n, D]``, the new tokens' queries.
        needs: what compressions need.
        kwargs: what attention is given beside.
        plain: no slot is empty or biased.
    """
    if not needs.queries and not needs.column_sums:
        return before
    positions = state.positions[:, 0, -query.shape[2] :].masked_fill(state.mass[:, 0, -query.shape[2] :] == 0, -1.0)
    after = _with_queries(before, query, positions, needs.queries, plain) if needs.queries else before
    if not needs.column_sums:
        return after
    new = column_sums(
        query,
        positions,
        state,
        scale(state, kwargs),
        tuple(sorted(needs.column_sums)),
        softcap=kwargs.get("softcap"),
        sink_logits=sink_logits(kwargs),
    )
    # Chunks add up to the whole.
    for n, sums in before.sums.items():
        new[n][..., : sums.shape[-1]] += sums
    return replace(after, sums=new)


def _with_queries(before: Captured, queries: Tensor, positions: Tensor, width: int, plain: bool) -> Captured:
    """Copies of the last queries, across chunks and turns."""
    if before.queries is not None and before.query_positions is not None:
        queries = torch.cat((before.queries, queries), dim=2)
        positions = torch.cat((before.query_positions, positions), dim=1)
    if not plain and parted(positions >= 0):
        # Padding goes to the left, so that as many queries of text are kept as the row has alone.
        order = (positions >= 0).to(torch.uint8).argsort(dim=1, stable=True)
        positions = positions.gather(1, order)
        queries = queries.gather(2, order[:, None, :, None].expand_as(queries))
    return replace(before, queries=queries[:, :, -width:].clone(), query_positions=positions[:, -width:].clone())


def parted(real: Tensor) -> bool:
    """Whether padding follows something real along the last dimension."""
    return bool((real[..., :-1] & ~real[..., 1:]).any())


def scale(state: KVState, kwargs: Mapping[str, Any]) -> float:
    """What the model multiplies query-key products by."""
    given = kwargs.get("scaling")
    return float(given) if given is not None else float(state.keys.shape[-1] ** -0.5)


def sink_logits(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Logit ``[H]`` of each query head's own attention sink, where the model has them."""
    sinks: Tensor | None = kwargs.get("s_aux")
    return None if sinks is None else sinks.detach().flatten()
