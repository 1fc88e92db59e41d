"""lagkv: values computed by hand, and its formula in loops."""

import math
from dataclasses import replace
from statistics import stdev

import pytest
import torch

from helpers.observations import observe, random_row
from helpers.slow import Vector, softmax
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import exact_state
from kvfw.methods.scorers.lagkv import LagKV


def of_vectors(vectors: list[list[float]]) -> Observation:
    """One row and head, with these keys and values."""
    found = torch.tensor(vectors, dtype=torch.float32)[None, None]
    positions = torch.arange(float(len(vectors)))[None]
    state = exact_state(found, found, positions, positions >= 0)
    return Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0)


def slow_spreads(run: list[Vector], following: list[Vector]) -> Vector:
    spans = [(min(c), max(c)) for c in zip(*following, strict=True)]
    inside = [[(x - a) / (b - a) if b > a else 0.0 for x, (a, b) in zip(t, spans, strict=True)] for t in run]
    return softmax([stdev(t) for t in inside])


def slow_lagkv(keys: list[Vector], values: list[Vector], part: LagKV) -> list[float | None]:
    """Scores of the tokens in partitions that a whole one follows, None for others."""
    scores: list[float | None] = [None] * len(keys)
    for start in range(part.sinks, len(keys) - 2 * part.lag + 1, part.lag):
        middle, end = start + part.lag, start + 2 * part.lag
        k, v = (slow_spreads(x[start:middle], x[middle:end]) for x in (keys, values))
        both = [a + part.value_weight * b for a, b in zip(k, v, strict=True)]
        scores[start:middle] = both if part.cross else [sum(y < x for y in both) / part.lag for x in both]
    return scores


def test_the_value_computed_by_hand() -> None:
    obs = of_vectors([[0, 0], [1, 3], [0, 0], [2, 4]])
    scores = LagKV(lag=2, sinks=0, value_weight=0, cross=True).score(obs).flatten()
    torch.testing.assert_close(scores[:2], torch.tensor([0.455921, 0.544079]))
    assert LagKV(lag=2, sinks=0).score(obs).flatten()[:2].tolist() == [0, 0.5]


def test_a_channel_that_is_constant_over_the_reference_counts_nothing() -> None:
    scores = LagKV(lag=2, sinks=0, cross=True).score(of_vectors([[0, 9], [1, 3], [0, 5], [2, 5]]))
    assert bool(scores.isfinite().all())
    assert math.isclose(float(scores.flatten()[0] + scores.flatten()[1]), 2, rel_tol=1e-6)


@pytest.mark.parametrize("part", [LagKV(lag=4), LagKV(lag=5, sinks=0, cross=True, value_weight=0.5)], ids=str)
def test_scores_are_those_of_the_formula_and_the_tail_comes_first(part: LagKV) -> None:
    rows = [random_row(23, 1), random_row(15, 2)]
    obs = observe(rows)
    empty = ~obs.state.valid[..., None]
    keys, values = (x.masked_fill(empty, torch.nan) for x in (obs.state.keys, obs.state.values))
    scores = part.score(replace(obs, state=replace(obs.state, keys=keys, values=values)))
    for i, row in enumerate(rows):
        for head in range(2):
            found = scores[i, head, -row.length :].tolist()
            slow = slow_lagkv(row.keys[head].double().tolist(), row.values[head].double().tolist(), part)
            tail = found[max(j for j, x in enumerate(slow) if x is not None) + 1 :]
            assert all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(found, slow, strict=True) if b is not None)
            assert tail == sorted(tail)
            assert tail[0] > max(x for x in slow if x is not None)


def test_a_prompt_of_less_than_two_partitions_keeps_the_latest() -> None:
    scores = LagKV(lag=8, sinks=1).score(observe([random_row(16, 1)]))[0, 0].tolist()
    assert scores[0] > scores[-1]
    assert scores[1:] == sorted(scores[1:])
    assert len(set(scores)) == len(scores)
