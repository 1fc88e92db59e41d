"""Expected Attention: a value computed by hand, and the formula in loops with dense rotations."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.observations import ROPE, SCALE, PromptRow, observe, random_row, with_hidden_padding
from helpers.slow import Vector, dot, slow_rotate, softmax
from kvfw.core.parts.part import is_comparable
from kvfw.core.state.moments import Moments, moments_of
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import Rope, unrotate
from kvfw.core.state.state import exact_state
from kvfw.errors import RunError
from kvfw.methods.scorers.expected import ExpectedAttention

LENGTHS = (21, 15)
INTERLEAVED = Rope(inv_freq=torch.tensor([0.7, 0.02]), scaling=0.9, layout="interleaved")
ROPES = [ROPE, INTERLEAVED, None]


def padded_rows(group: int, sinks: int, rope: Rope | None) -> tuple[list[PromptRow], Observation]:
    """Two rows of different length with their moments; keys and values of padding are NaN."""
    rows = [random_row(length, seed, group=group) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, window=max(LENGTHS), rope=rope)
    queries, at = obs.window()
    if rope is not None:
        queries = unrotate(queries, at.clamp(min=0)[:, None], rope)
    return rows, replace(with_hidden_padding(obs), moments={sinks: moments_of(queries, at >= sinks)})


def turned(x: Vector, position: float, rope: Rope | None, scaling: float) -> Vector:
    return x if rope is None else slow_rotate(x, position, rope.inv_freq.tolist(), scaling, rope.layout)


def slow_future(queries: list[Vector], sinks: int, positions: int, rope: Rope | None) -> tuple[Tensor, Tensor]:
    """Mean and covariance of one head's queries to come, by the dense mean of the rotations."""
    scaling = 1.0 if rope is None else rope.scaling
    before = [turned(q, -i, rope, 1 / scaling) for i, q in enumerate(queries)][sinks:]
    matrix = torch.tensor(before, dtype=torch.float64)
    away = matrix - matrix.mean(0)
    units = torch.eye(matrix.shape[1]).tolist()
    ahead = range(len(queries), len(queries) + positions)
    columns = [[turned(unit, p, rope, scaling) for p in ahead] for unit in units]
    mean_rotation = torch.tensor(columns, dtype=torch.float64).mean(1).T
    return mean_rotation @ matrix.mean(0), mean_rotation @ (away.T @ away / len(before)) @ mean_rotation.T


def slow_expected(row: PromptRow, head: int, part: ExpectedAttention, rope: Rope | None) -> Vector:
    """Scores of the slots after the sinks."""
    group = row.queries.shape[0] // row.keys.shape[0]
    keys, values = (x[head].double().tolist()[part.sinks :] for x in (row.keys, row.values))
    total = [0.0] * len(keys)
    for queries in row.queries[head * group : (head + 1) * group].double().tolist():
        mean, spread = slow_future(queries, part.sinks, part.positions, rope)
        logits = []
        for key in keys:
            quadratic = float(torch.tensor(key).double() @ spread @ torch.tensor(key).double())
            logits.append(SCALE * dot(mean.tolist(), key) + part.covariance * SCALE**2 * quadratic / 2)
        total = [a + b / group for a, b in zip(total, softmax(logits), strict=True)]
    if not part.value_norm:
        return total
    return [(a + part.epsilon) * math.sqrt(dot(v, v)) for a, v in zip(total, values, strict=True)]


def test_the_value_computed_by_hand() -> None:
    keys = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])[None, None]
    positions = torch.arange(3.0)[None]
    state = exact_state(keys, keys, positions, positions >= 0)
    moments = Moments(torch.ones(1), torch.tensor([[[math.sqrt(2), 0.0]]]), torch.tensor([[[[4.0, 0.0], [0.0, 0.0]]]]))
    obs = Observation(
        state=state, protected=torch.zeros_like(state.valid), scale=2**-0.5, layer=0, moments={0: moments}
    )
    scores = ExpectedAttention(sinks=0, value_norm=False).score(obs)
    torch.testing.assert_close(scores.flatten(), torch.tensor([0.106507, 0.786986, 0.106507]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rope", ROPES, ids=["half", "interleaved", "no rotation"])
@pytest.mark.parametrize(
    ("group", "part"),
    [
        (1, ExpectedAttention()),
        (3, ExpectedAttention(epsilon=0.02, positions=7, sinks=0)),
        (3, ExpectedAttention(covariance=False, positions=1, sinks=2)),
        (2, ExpectedAttention(value_norm=False, positions=40)),
    ],
    ids=str,
)
def test_scores_are_those_of_the_formula(group: int, part: ExpectedAttention, rope: Rope | None) -> None:
    rows, obs = padded_rows(group, part.sinks, rope)
    scores = part.score(obs.narrowed(part.needs))
    for i, row in enumerate(rows):
        for head in range(2):
            expected = torch.tensor(slow_expected(row, head, part, rope), dtype=torch.float32)
            torch.testing.assert_close(scores[i, head, part.sinks - row.length :], expected, rtol=2e-4, atol=1e-6)


def test_sinks_come_before_all_others() -> None:
    _, obs = padded_rows(2, 4, ROPE)
    scores = ExpectedAttention().score(obs)
    for i, length in enumerate(LENGTHS):
        real = scores[i, :, -length:]
        assert bool((real[:, :4] == real.max()).all())


def test_a_rows_scores_do_not_depend_on_the_other_row() -> None:
    rows, both = padded_rows(2, 4, ROPE)
    scores = ExpectedAttention().score(both)
    for i, row in enumerate(rows):
        queries = unrotate(row.queries[None], torch.arange(float(row.length)).expand(1, 1, -1), ROPE)
        alone = replace(observe([row]), moments={4: moments_of(queries, torch.arange(row.length)[None] >= 4)})
        torch.testing.assert_close(ExpectedAttention().score(alone)[0], scores[i, :, -row.length :])


@pytest.mark.parametrize("length", [1, 4, 5])
def test_prompts_of_hardly_more_than_the_sinks_get_numbers(length: int) -> None:
    row = random_row(length, 1)
    moments = moments_of(row.queries[None], torch.arange(length)[None] >= 4)
    scores = ExpectedAttention().score(replace(observe([row]), moments={4: moments}))
    assert bool(scores.isfinite().all())


def test_a_models_own_sinks_take_their_part() -> None:
    _, obs = padded_rows(2, 4, ROPE)
    part = ExpectedAttention(value_norm=False)
    none = part.score(replace(obs, sink_logits=torch.full((4,), -1e4)))
    torch.testing.assert_close(none, part.score(obs))
    some = part.score(replace(obs, sink_logits=torch.zeros(4)))
    counted = obs.state.valid & (obs.state.positions >= 4)
    assert bool((some[counted] < none[counted]).all())


def test_it_needs_moments_and_its_scores_share_a_unit() -> None:
    assert is_comparable(ExpectedAttention())
    with pytest.raises(RunError, match="moments"):
        ExpectedAttention().score(replace(observe([random_row(9, 1)]), moments={}))
