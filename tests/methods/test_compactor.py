"""leverage, noncausal and compactor: values computed by hand, and their formulas in loops."""

import math
from dataclasses import replace
from statistics import mean, stdev

import pytest
import torch

from helpers.observations import ROPE, PromptRow, observe, random_row
from helpers.slow import Vector, dot, slow_pool, slow_rotate, softmax
from kvfw.core.parts.part import is_comparable
from kvfw.core.state.observation import Observation, protect
from kvfw.core.state.state import exact_state
from kvfw.methods.scorers.compactor import Compactor
from kvfw.methods.scorers.leverage import Leverage
from kvfw.methods.scorers.noncausal import NonCausal

SINKS, RECENT = 2, 3
LENGTHS = (21, 15)


def padded() -> tuple[list[PromptRow], Observation]:
    """Two rows of different length; what lies in the padding is not a number."""
    rows = [random_row(length, seed) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, window=max(LENGTHS))
    empty = ~obs.state.valid[..., None]
    keys, values = (x.masked_fill(empty, torch.nan) for x in (obs.state.keys, obs.state.values))
    return rows, replace(obs, state=replace(obs.state, keys=keys, values=values))


def slow_leverage(row: PromptRow, head: int, ridge: float) -> Vector:
    keys = [
        slow_rotate(k, -i, ROPE.inv_freq.tolist(), 1 / ROPE.scaling, ROPE.layout)
        for i, k in enumerate(row.keys[head].double().tolist())
    ][SINKS:-RECENT]
    x = torch.tensor(keys, dtype=torch.float64)
    x = x - x.mean(0)
    inverse = torch.linalg.inv(x.T @ x + ridge * torch.eye(x.shape[1], dtype=torch.float64))
    return [float(v @ inverse @ v) for v in x]


def slow_noncausal(row: PromptRow, head: int, part: NonCausal, scale: float) -> Vector:
    group = row.queries.shape[0] // row.keys.shape[0]
    keys, values = row.keys[head].double().tolist(), row.values[head].double().tolist()
    middle = range(SINKS, row.length - RECENT)
    received = dict.fromkeys(middle, 0.0)
    for queries in row.queries[head * group : (head + 1) * group].double().tolist():
        for i in middle:
            near = [j for j in middle if j // part.chunk == i // part.chunk]
            weights = softmax([scale * dot(queries[i], keys[j]) for j in near])
            for j, weight in zip(near, weights, strict=True):
                received[j] += weight / group
    return slow_pool([c * math.sqrt(dot(values[j], values[j])) for j, c in received.items()], part.kernel, "avg")


def slow_z(scores: list[Vector]) -> list[Vector]:
    every = [x for head in scores for x in head]
    return [[(x - mean(every)) / stdev(every) for x in head] for head in scores]


def test_leverage_is_the_value_computed_by_hand_and_sums_to_the_rank() -> None:
    keys = torch.tensor([[1.0, 0], [1, 0], [-2, 0], [0, 3], [0, -3]])[None, None]
    positions = torch.arange(5.0)[None]
    state = exact_state(keys, keys, positions, positions >= 0)
    obs = Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0)
    scores = Leverage(ridge=1e-9).score(obs).flatten()
    torch.testing.assert_close(scores, torch.tensor([1 / 6, 1 / 6, 2 / 3, 1 / 2, 1 / 2]), rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_the_formulas() -> None:
    rows, obs = padded()
    part = NonCausal(chunk=6)
    leverage, noncausal = Leverage(ridge=0.5), NonCausal(chunk=6, scaled=True, kernel=1)
    both = Compactor(blending=0.3, outliers=leverage, attention=part)
    found = {each: each.score(obs.narrowed(each.needs)) for each in (leverage, noncausal, both)}
    for i, row in enumerate(rows):
        slow = [
            [slow_leverage(row, head, 0.5) for head in range(2)],
            [slow_noncausal(row, head, noncausal, obs.scale) for head in range(2)],
            [slow_noncausal(row, head, part, 1.0) for head in range(2)],
        ]
        blended = [
            [0.3 * x + y for x, y in zip(*pair, strict=True)]
            for pair in zip(slow_z(slow[0]), slow_z(slow[2]), strict=True)
        ]
        for scores, expected in zip(found.values(), (slow[0], slow[1], blended), strict=True):
            real = scores[i, :, SINKS - row.length : -RECENT]
            torch.testing.assert_close(real, torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_scores_outside_the_middle_are_0_and_rows_do_not_depend_on_each_other() -> None:
    rows, obs = padded()
    for part in (Leverage(), NonCausal(chunk=8)):
        scores = part.score(obs)
        assert not scores[~obs.middle].any()
        for i, row in enumerate(rows):
            alone = part.score(observe([row], window=row.length))
            torch.testing.assert_close(alone[0], scores[i, :, -row.length :], rtol=1e-4, atol=1e-5)


def test_heads_that_kept_other_tokens_are_scored_by_what_they_kept() -> None:
    _, obs = padded()
    dropped = torch.zeros_like(obs.state.valid)
    dropped[:, 0, 6:14] = True
    state = replace(obs.state, mass=obs.state.mass.masked_fill(dropped, 0.0))
    ragged = replace(obs, state=state, protected=protect(state.valid, SINKS, RECENT))
    scores = NonCausal(chunk=4).score(ragged)
    assert bool(scores.isfinite().all())
    assert torch.equal(scores[:, 1], NonCausal(chunk=4).score(obs)[:, 1])


@pytest.mark.parametrize("length", [1, 5, 6, 7])
def test_prompts_with_hardly_a_middle_get_numbers(length: int) -> None:
    obs = observe([random_row(length, 1)], window=length)
    for part in (Leverage(), NonCausal(), Compactor(outliers=Leverage(), attention=NonCausal())):
        assert bool(part.score(obs).isfinite().all())


def test_only_attention_times_norm_is_compared_over_heads() -> None:
    assert is_comparable(NonCausal())
    assert not is_comparable(Leverage())
    assert not is_comparable(Compactor(outliers=NonCausal(), attention=NonCausal()))
