"""Captures what later compressions need from a forward: the last queries and the attention that slots received."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.ops.column_sums import column_sums
from kvfw.core.state.observation import Needs
from kvfw.core.state.state import KVState
from kvfw.model.cache.captured import Captured
from kvfw.model.cache.layer import CompressedLayer


def captured_after(
    layer: CompressedLayer, positions: Tensor, query: Tensor, needs: Needs, kwargs: Mapping[str, Any]
) -> Captured:
    """Adds what is needed of the new tokens' queries ``[B, H, n, D]`` to what the layer captured before.

    ``positions`` ``[B, n]`` are theirs, -1 for padding; the layer holds their slots already. ``kwargs`` are attention's
    further arguments.
    """
    before = after = layer.captured
    if needs.queries:
        after = _with_queries(before, query, positions, needs.queries, layer.storage.plain)
    if not needs.column_sums:
        return after
    state = layer.state
    distances, options = tuple(sorted(needs.column_sums)), logit_options(kwargs)
    new = column_sums(query, positions, state, scale(state, kwargs), distances, **options)
    for n, sums in before.sums.items():
        new[n][..., : sums.shape[-1]] += sums
    return replace(after, sums=new)


def _with_queries(before: Captured, queries: Tensor, positions: Tensor, width: int, plain: bool) -> Captured:
    """Adds copies of the last queries, across chunks and turns."""
    if before.queries is not None and before.query_positions is not None:
        queries = torch.cat((before.queries, queries), dim=2)
        positions = torch.cat((before.query_positions, positions), dim=1)
    if not plain and parted(positions >= 0):
        # Move padding to the left, so that a row keeps as many real queries as it would alone.
        order = (positions >= 0).to(torch.uint8).argsort(dim=1, stable=True)
        positions = positions.gather(1, order)
        queries = queries.gather(2, order[:, None, :, None].expand_as(queries))
    return replace(before, queries=queries[:, :, -width:].clone(), query_positions=positions[:, -width:].clone())


def parted(real: Tensor) -> bool:
    """Whether padding follows a real token along the last dimension."""
    return bool((real[..., :-1] & ~real[..., 1:]).any())


def scale(state: KVState, kwargs: Mapping[str, Any]) -> float:
    """The model's factor on query-key products."""
    given = kwargs.get("scaling")
    return float(given) if given is not None else float(state.keys.shape[-1] ** -0.5)


def logit_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The cap of attention logits, and the logit ``[H]`` of each query head's own attention sink; None without."""
    sinks: Tensor | None = kwargs.get("s_aux")
    return {"softcap": kwargs.get("softcap"), "sink_logits": None if sinks is None else sinks.detach().flatten()}
