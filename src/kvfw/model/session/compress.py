"""Compressing a layer: what scorers observe, and what the layer holds afterwards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvfw.core.compress.stages import take_scores
from kvfw.core.state.observation import Observation, protect
from kvfw.core.state.rope import Rope
from kvfw.core.state.slots import take
from kvfw.errors import UnsupportedError
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.inspect.layers import Layer
from kvfw.model.session.capture import logit_options, parted, scale
from kvfw.model.session.plan import SessionPlan


def observe(
    layer: CompressedLayer,
    part: Layer,
    plan: SessionPlan,
    rope: Rope | None,
    lexical: Tensor | None,
    kwargs: Mapping[str, Any],
) -> Observation:
    """A layer as scorers see it; ``lexical`` ``[B, N]`` are lexical features, if needed, the same for all layers."""
    state, sums = layer.state, dict(layer.captured.sums)
    if not layer.storage.plain and parted(state.valid):
        # Remove padding between slots (of a later turn, or inside a text), so that scorers see the true neighbours.
        full = state
        state = take(full, full.valid)
        sums = {n: take_scores(sum_, full.valid, state.width) * state.valid for n, sum_ in sums.items()}
        if lexical is not None:
            lexical = (take_scores(lexical[:, None], full.valid[:, :1], state.width) * state.valid[:, :1])[:, 0]
    return Observation(
        state=state,
        protected=protect(state.valid, plan.sinks, plan.recent),
        scale=scale(state, kwargs),
        layer=part.index,
        rope=rope,
        queries=layer.captured.queries,
        query_positions=layer.captured.query_positions,
        column_sums=sums,
        lexical=lexical,
        output_projection=part.output_projection,
        **logit_options(kwargs),
    )


def compress(layer: CompressedLayer, obs: Observation, plan: SessionPlan, budget: Tensor) -> None:
    """Compresses a layer to its protected tokens and its budget of slots; the next token's position is unchanged.

    Raises:
        UnsupportedError: its keys are rotated otherwise than when it was last compressed.
        RunError: keys that are not finite, or a part that breaks its contract.
    """
    assert plan.compressor is not None
    before = layer.captured
    now = replace(
        before,
        inv_freq=_rotation(before.inv_freq, obs.rope),
        compressed=True,
        compressed_at=before.seen,
        moved=before.moved or plan.compressor.moves_positions,
    )
    if plan.again:
        state, sums = plan.compressor.compress_with_sums(obs, budget)
        now = replace(now, sums=sums)
    else:
        state = plan.compressor.compress(obs, budget)
        now = replace(now, sums={}, queries=None, query_positions=None)
    layer.hold(state)
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
