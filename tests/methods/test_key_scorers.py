"""knorm and keydiff: values computed by hand, and their formulas in loops."""

import math

import pytest
import torch

from helpers.observations import observe, random_row, with_hidden_padding
from helpers.slow import Vector, dot
from kvfw.core.parts.part import Part, is_comparable
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import exact_state
from kvfw.methods.scorers.keydiff import KeyDiff
from kvfw.methods.scorers.knorm import KNorm


def of_keys(keys: list[list[float]], dtype: torch.dtype = torch.float32) -> Observation:
    """One row, one head, all of it middle."""
    found = torch.tensor(keys, dtype=dtype)[None, None]
    positions = torch.arange(float(len(keys)))[None]
    state = exact_state(found, torch.zeros_like(found), positions, positions >= 0)
    return Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0)


def slow_knorm(keys: list[Vector]) -> Vector:
    return [-math.sqrt(dot(key, key)) for key in keys]


def slow_keydiff(keys: list[Vector]) -> Vector:
    units = [[x / math.sqrt(dot(key, key)) for x in key] for key in keys]
    anchor = [sum(column) / len(units) for column in zip(*units, strict=True)]
    return [-dot(unit, anchor) / math.sqrt(dot(anchor, anchor)) for unit in units]


def test_knorm_is_the_negative_norm() -> None:
    scores = KNorm().score(of_keys([[3, 4], [1, 0], [0, 2]]))
    assert scores.flatten().tolist() == [-5, -1, -2]


def test_keydiff_is_the_negative_cosine_to_the_mean_direction() -> None:
    scores = KeyDiff().score(of_keys([[1, 0], [0, 1], [2, 0]]))
    torch.testing.assert_close(scores.flatten(), torch.tensor([-0.894427, -0.447214, -0.894427]))


def test_knorm_tells_norms_apart_that_bfloat16_cannot() -> None:
    scores = KNorm().score(of_keys([[16.0, 0.5], [16.0, 1.0]], torch.bfloat16)).flatten()
    assert scores[0] > scores[1]
    assert torch.equal(scores[0].bfloat16(), scores[1].bfloat16())


def test_keydiff_of_a_key_of_zeros_is_a_number() -> None:
    scores = KeyDiff().score(of_keys([[0, 0], [0, 1], [2, 0]]))
    assert not scores.isnan().any()
    assert scores.flatten()[0] == 0


@pytest.mark.parametrize(("scorer", "slow"), [(KNorm(), slow_knorm), (KeyDiff(), slow_keydiff)])
def test_scores_are_those_of_the_formula_whatever_the_padding_holds(scorer: KNorm | KeyDiff, slow: object) -> None:
    assert callable(slow)
    rows = [random_row(21, 1), random_row(15, 2)]
    obs = observe(rows)
    scores = scorer.score(with_hidden_padding(obs))
    for i, row in enumerate(rows):
        for head in range(2):
            expected = torch.tensor(slow(row.keys[head].double().tolist()), dtype=torch.float32)
            torch.testing.assert_close(scores[i, head, -row.length :], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scorer", [KNorm(), KeyDiff()])
def test_their_scores_are_not_compared_over_heads(scorer: Part) -> None:
    assert not is_comparable(scorer)
