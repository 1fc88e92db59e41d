"""qfilters: a value computed by hand, and the main direction of rotated queries, query by query."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.observations import ROPE, PromptRow, observe, random_row
from helpers.slow import Vector, dot, slow_rotate
from kvfw.core.ops.query_model import PLACES
from kvfw.core.state.moments import Moments
from kvfw.core.state.observation import Observation
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import exact_state
from kvfw.methods.scorers.qfilters import QFilters


def slow_direction(queries: list[Vector], rope: Rope | None) -> Vector:
    """Of every query turned to each of the places."""
    turned = queries
    if rope is not None:
        how, last = rope.inv_freq.tolist(), len(queries) - 1
        before = [slow_rotate(q, -i, how, 1 / rope.scaling, rope.layout) for i, q in enumerate(queries)]
        places = [last * k / (PLACES - 1) for k in range(PLACES)]
        turned = [slow_rotate(q, p, how, rope.scaling, rope.layout) for q in before for p in places]
    u = torch.linalg.svd(torch.tensor(turned, dtype=torch.float64), full_matrices=False).Vh[0].tolist()
    along = sum(dot(q, u) for q in turned)
    return [math.copysign(1, along) * x for x in u]


def slow_qfilters(row: PromptRow, head: int, rope: Rope | None) -> Vector:
    group = row.queries.shape[0] // row.keys.shape[0]
    each = [slow_direction(row.queries[head * group + g].double().tolist(), rope) for g in range(group)]
    u = [sum(column) / group for column in zip(*each, strict=True)]
    return [dot(u, key) for key in row.keys[head].double().tolist()]


def test_the_value_computed_by_hand() -> None:
    keys = torch.tensor([[1.0, 0], [0, 5], [-2, 1]])[None, None]
    positions = torch.arange(3.0)[None]
    state = exact_state(keys, keys, positions, positions >= 0)
    moments = Moments(torch.ones(1), torch.tensor([[[3.0, 0.0]]]), torch.zeros(1, 1, 2, 2))
    obs = Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0, moments={0: moments})
    torch.testing.assert_close(QFilters().score(obs).flatten(), torch.tensor([1.0, 0.0, -2.0]))


@pytest.mark.parametrize("rope", [ROPE, None], ids=["rotated", "not rotated"])
def test_scores_are_those_of_the_formula_whatever_the_padding_holds(rope: Rope | None) -> None:
    rows = [random_row(21, 3), random_row(15, 4)]
    # Queries that lie on one side, as those of a model do; else the direction hangs on rounding.
    rows = [replace(row, queries=row.queries + torch.tensor([0, 0, 3.0, 0, 0, 2, 0, 1])) for row in rows]
    obs = observe(rows, rope=rope)
    keys = obs.state.keys.masked_fill(~obs.state.valid[..., None], torch.nan)
    scores = QFilters().score(replace(obs, state=replace(obs.state, keys=keys)))
    for i, row in enumerate(rows):
        for head in range(2):
            expected = torch.tensor(slow_qfilters(row, head, rope))
            torch.testing.assert_close(scores[i, head, -row.length :], expected.float(), rtol=1e-4, atol=1e-4)
