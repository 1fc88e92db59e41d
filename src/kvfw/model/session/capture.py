"""Captures what later compressions need from a forward: the last queries and the attention that slots received."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.ops.columns import attention_columns
from kvfw.core.state.moments import Moments, moments_of
from kvfw.core.state.observation import ALL, PROMPT, Columns, Needs, References
from kvfw.core.state.rope import Rope, unrotate
from kvfw.core.state.state import KVState
from kvfw.model.cache.captured import Captured
from kvfw.model.cache.layer import CompressedLayer


@dataclass(frozen=True)
class SeenTokens:
    """What one forward shows of a layer besides its slots.

    Args:
        query: rotated queries of the new tokens.
        kwargs: attention's further arguments.
        rope: how the layer's keys and queries are rotated; None if they are not.
        norms: norms of the hidden states that the layer's attention read ``[B, n]``, where they are needed.
        before: tokens fed before.
        expected: tokens that the prompt will have, this forward included.
    """

    query: Tensor
    kwargs: Mapping[str, Any]
    rope: Rope | None = None
    norms: Tensor | None = None
    before: int = 0
    expected: int = 0


def captured_after(layer: CompressedLayer, positions: Tensor, seen: SeenTokens, needs: Needs) -> Captured:
    """Adds what is needed of the new tokens' queries to what the layer captured before.

    ``positions`` ``[B, n]`` are theirs, -1 for padding; the layer holds their slots already.
    """
    before = after = layer.captured
    query, kwargs, count = seen.query, seen.kwargs, seen.query.shape[2]
    if needs.queries:
        after = _with_queries(before, query, positions, needs.queries, layer.storage.plain)
    wanted = {n: Columns(n) for n in sorted(needs.column_sums)}
    columns = needs.of_source(PROMPT).columns
    if wanted or columns:
        state = layer.state
        asked = {*wanted.values(), *columns}
        new = attention_columns(
            query, positions, state, scale(state, kwargs), asked, norms=seen.norms, **logit_options(kwargs)
        )
        sums = {n: padded_sum(before.sums.get(n), new[each].clone()) for n, each in wanted.items()}
        after = replace(after, sums=sums, columns=added_columns(before.columns, {each: new[each] for each in columns}))
    if asked_for := needs.of_source(PROMPT).references:
        # Padding comes before a prompt's tokens, so what is still expected is real.
        expected = seen.expected - seen.before - count + before.tokens
        kept = {each: picked(query, positions, each, _ranks(before, positions), expected) for each in asked_for}
        after = replace(after, references=joined(before.references, kept))
    return replace(after, moments=_with_moments(before, seen, positions, needs.moments)) if needs.moments else after


def padded_sum(old: Tensor | None, new: Tensor) -> Tensor:
    """The sum of both, where ``new`` has more slots on the right."""
    if old is not None:
        new[..., : old.shape[-1]] += old
    return new


def added_columns(old: Mapping[Columns, Tensor], new: Mapping[Columns, Tensor]) -> dict[Columns, Tensor]:
    """Reductions over the queries of both; ``new`` may have more slots on the right."""
    found = {}
    for each, part in new.items():
        if (earlier := old.get(each)) is not None:
            room = torch.nn.functional.pad(earlier, (0, part.shape[-1] - earlier.shape[-1]))
            part = torch.maximum(part, room) if each.over == "max" else part + room
        found[each] = part
    return found


def picked(
    query: Tensor, positions: Tensor, asked: References, ranks: Tensor, expected: Tensor
) -> tuple[Tensor, Tensor]:
    """The reference queries among those of one forward, evenly spaced over every row's tokens, however they are fed.

    Args:
        query, positions: those of the forward; a position of -1 is padding.
        asked: how many; all of them where a row has no more tokens.
        ranks: how many real tokens of its row come before each ``[B, n]``.
        expected: real tokens that each row will have ``[B]``.

    Returns:
        As many as the row with most; other rows have padding on the left.
    """
    share = (
        asked.count * (ranks + torch.arange(2, device=ranks.device)[:, None, None]) // expected.clamp(min=1)[:, None]
    )
    chosen = (positions >= 0) & (share[1] > share[0])
    most = int(chosen.sum(1).max())
    order = chosen.to(torch.uint8).argsort(dim=1, stable=True)[:, chosen.shape[1] - most :]
    queries = query.gather(2, order[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3]))
    return queries, positions.masked_fill(~chosen, -1.0).gather(1, order)


def joined(
    old: Mapping[References, tuple[Tensor, Tensor]], new: Mapping[References, tuple[Tensor, Tensor]]
) -> dict[References, tuple[Tensor, Tensor]]:
    """The reference queries of both."""
    found = dict(new)
    for each, (queries, positions) in old.items():
        found[each] = torch.cat((queries, new[each][0]), 2), torch.cat((positions, new[each][1]), 1)
    return found


def _with_moments(
    before: Captured, seen: SeenTokens, positions: Tensor, left_out: frozenset[int]
) -> dict[int, Moments]:
    query = seen.query
    if seen.rope is not None:
        query = unrotate(query, positions.clamp(min=0)[:, None], seen.rope)
    new = {n: moments_of(query, (positions >= 0) & (_ranks(before, positions) >= n)) for n in left_out}
    return {n: before.moments[n] + part if n in before.moments else part for n, part in new.items()}


def _ranks(before: Captured, positions: Tensor) -> Tensor:
    """How many real tokens of its row come before each of the last ones, which ``before`` counts already."""
    real = positions >= 0
    return before.tokens[:, None] - real.sum(1, keepdim=True) + real.cumsum(1) - 1


def _with_queries(before: Captured, queries: Tensor, positions: Tensor, width: int | str, plain: bool) -> Captured:
    """Adds copies of the last queries, across chunks and turns."""
    if before.queries is not None and before.query_positions is not None:
        queries = torch.cat((before.queries, queries), dim=2)
        positions = torch.cat((before.query_positions, positions), dim=1)
    if not plain and parted(positions >= 0):
        # Move padding to the left, so that a row keeps as many real queries as it would alone.
        order = (positions >= 0).to(torch.uint8).argsort(dim=1, stable=True)
        positions = positions.gather(1, order)
        queries = queries.gather(2, order[:, None, :, None].expand_as(queries))
    last = slice(None) if width == ALL else slice(-int(width), None)
    return replace(before, queries=queries[:, :, last].clone(), query_positions=positions[:, last].clone())


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
