"""Compressing a layer: what scorers observe, and what the layer holds afterwards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.compress.scores import Scores
from kvfw.core.compress.stages import take_scores
from kvfw.core.state.observation import Observation, protect
from kvfw.core.state.rope import Rope
from kvfw.core.state.slots import take
from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.inspect.layers import Layer
from kvfw.model.session.capture import logit_options, parted, scale
from kvfw.model.session.plan import SessionPlan
from kvfw.model.session.text import TextFeatures


def observe(
    layer: CompressedLayer,
    part: Layer,
    plan: SessionPlan,
    rope: Rope | None,
    text: TextFeatures,
    kwargs: Mapping[str, Any],
) -> Observation:
    """A layer as scorers see it; ``text`` are features of the prompt's tokens, the same for all layers."""
    state, sums, columns = layer.state, dict(layer.captured.sums), dict(layer.captured.columns)
    if not layer.storage.plain and parted(state.valid):
        # Remove padding between slots (of a later turn, or inside a text), so that scorers see the true neighbours.
        full = state
        state = take(full, full.valid)

        def closed(scores: Tensor) -> Tensor:
            # Padding is the same for all heads of a row, and for its query heads.
            seen = full.valid if scores.shape[1] == full.valid.shape[1] else full.valid[:, :1].expand_as(scores)
            valid = state.valid if seen is full.valid else state.valid[:, :1]
            return take_scores(scores, seen, state.width) * valid

        sums = {n: closed(part) for n, part in sums.items()}
        columns = {each: closed(part) for each, part in columns.items()}
        text = text.closed(lambda x: closed(x[:, None].expand(-1, full.valid.shape[1], -1))[:, 0])
    text = text.emptied(state.valid[:, 0])
    return Observation(
        state=state,
        protected=protect(state.valid, plan.sinks, plan.recent),
        scale=scale(state, kwargs),
        layer=part.index,
        rope=rope,
        queries=layer.captured.queries,
        query_positions=layer.captured.query_positions,
        column_sums=sums,
        output_projection=part.output_projection,
        columns=columns,
        references=layer.captured.references,
        moments=layer.captured.moments,
        lexical=text.lexical,
        ids=text.ids,
        types=text.types,
        **logit_options(kwargs),
    )


def compress(layer: CompressedLayer, scores: Scores, plan: SessionPlan, budget: Tensor) -> None:
    """Compresses a layer to its protected tokens and its budget of slots; the next token's position is unchanged.

    ``scores`` are of the layer as it was observed.

    Raises:
        UnsupportedError: its keys are rotated otherwise than when it was last compressed.
        RunError: keys that are not finite, or a part that breaks its contract.
    """
    assert plan.compressor is not None
    before, obs = layer.captured, scores.obs
    now = before.compressed_now(
        inv_freq=_rotation(before.inv_freq, obs.rope), moved=before.moved or plan.compressor.moves_positions
    )
    if plan.again:
        state, sums = plan.compressor.compress_with_sums(obs, budget, scores)
        now = replace(now, sums=sums)
    else:
        state = plan.compressor.compress(obs, budget, scores)
        now = replace(now, sums={}, queries=None, query_positions=None, moments={})
    layer.hold(state, plan.compressor.rule(obs.layer).coder(obs.layer), obs)
    layer.captured = now


def _rotation(before: Tensor | None, rope: Rope | None) -> Tensor | None:
    """The inverse frequencies of a layer's keys; UnsupportedError if they changed since an earlier compression."""
    if rope is None:
        return before
    if before is not None and not torch.equal(before.to(rope.inv_freq.device), rope.inv_freq):
        raise UnsupportedError(
            "this model changes its rotation with the length (dynamic or LongRoPE scaling), and it changed since "
            "the cache was last compressed, so the keys can no longer be told apart; compress once, without "
            "recompress= and compress_every="
        )
    return rope.inv_freq
