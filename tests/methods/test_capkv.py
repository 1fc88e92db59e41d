"""capkv: a value computed by hand, and its formula in loops."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.observations import ROPE, PromptRow, observe, random_row
from helpers.slow import Vector, dot, slow_rotate
from kvfw.core.ops.leverage import leverages
from kvfw.core.state.moments import moments_of
from kvfw.core.state.rope import unrotate
from kvfw.methods.scorers.capkv import CapKV

LENGTHS = (21, 15)


def slow_capkv(row: PromptRow, head: int, part: CapKV) -> Vector:
    group = row.queries.shape[0] // row.keys.shape[0]
    keys, values = (x[head].double().tolist()[part.sinks :] for x in (row.keys, row.values))
    v = torch.tensor(values, dtype=torch.float64)
    total = [0.0] * len(keys)
    for queries in row.queries[head * group : (head + 1) * group].double().tolist():
        how = ROPE.inv_freq.tolist(), ROPE.layout
        before = [slow_rotate(q, -i, how[0], 1 / ROPE.scaling, how[1]) for i, q in enumerate(queries)][part.sinks :]
        mean = [sum(column) / len(before) for column in zip(*before, strict=True)]
        ahead = range(row.length, row.length + part.positions)
        turned = [slow_rotate(mean, p, how[0], ROPE.scaling, how[1]) for p in ahead]
        mu = [sum(column) / len(turned) for column in zip(*turned, strict=True)]
        cosines = [dot(k, mu) / math.sqrt(dot(k, k) * dot(mu, mu)) for k in keys]
        w = torch.tensor([math.exp(part.tau * (c - max(cosines))) for c in cosines], dtype=torch.float64)
        inverse = torch.linalg.inv(torch.eye(v.shape[1], dtype=torch.float64) + (v.T * w) @ v)
        total = [t + float(a * (x @ inverse @ x)) / group for t, a, x in zip(total, w, v, strict=True)]
    return total


def test_the_weighed_leverage_is_the_value_computed_by_hand() -> None:
    found = leverages(torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[1.0, 0.5]]]), 1.0)
    torch.testing.assert_close(found, torch.tensor([[[0.25, 0.5]]]))


@pytest.mark.parametrize("part", [CapKV(), CapKV(tau=1, positions=5, sinks=0)], ids=str)
def test_scores_are_those_of_the_formula_whatever_the_padding_holds(part: CapKV) -> None:
    rows = [random_row(length, seed) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, window=max(LENGTHS))
    queries, at = obs.window()
    moments = moments_of(unrotate(queries, at.clamp(min=0)[:, None], ROPE), at >= part.sinks)
    empty = ~obs.state.valid[..., None]
    keys, values = (x.masked_fill(empty, torch.nan) for x in (obs.state.keys, obs.state.values))
    state = replace(obs.state, keys=keys, values=values)
    scores = part.score(replace(obs, state=state, moments={part.sinks: moments}))
    for i, row in enumerate(rows):
        for head in range(2):
            expected = torch.tensor(slow_capkv(row, head, part))
            found = scores[i, head, part.sinks - row.length :]
            torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-6)
        assert bool((scores[i, :, -row.length :][:, : part.sinks] == scores[i].max()).all())


@pytest.mark.parametrize("length", [1, 4, 5])
def test_prompts_of_hardly_more_than_the_sinks_get_numbers(length: int) -> None:
    assert bool(CapKV().score(observe([random_row(length, 1)])).isfinite().all())
