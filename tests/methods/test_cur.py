"""cur: values computed by hand, and its formula in loops."""

from dataclasses import replace

import pytest
import torch

from helpers.observations import observe, random_row
from helpers.slow import Vector, dot
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import exact_state
from kvfw.methods.scorers.cur import CUR


def of_squares(keys: list[float], values: list[float]) -> Observation:
    """One row and head, whose keys and values have these squared norms."""
    found, others = (torch.tensor(x).sqrt()[None, None, :, None] for x in (keys, values))
    positions = torch.arange(float(len(keys)))[None]
    state = exact_state(found, others, positions, positions >= 0)
    return Observation(state=state, protected=torch.zeros_like(state.valid), scale=1.0, layer=0)


def slow_shares(vectors: list[Vector], window: int) -> Vector:
    squares = [dot(x, x) for x in vectors]
    shares = []
    for j, square in enumerate(squares):
        start = j - j % window
        near = squares[start : start + window]
        shares.append(square / sum(near) * len(near) / window)
    return shares


def test_the_product_of_shares_is_the_value_computed_by_hand() -> None:
    scores = CUR(window=2).score(of_squares([1, 3, 2, 2], [1, 1, 3, 1]))
    torch.testing.assert_close(scores.flatten(), torch.tensor([0.125, 0.375, 0.375, 0.125]))


def test_tokens_of_a_last_window_that_is_not_full_have_no_advantage() -> None:
    scores = CUR(window=4).score(of_squares([1] * 6, [1] * 6))
    torch.testing.assert_close(scores, torch.full_like(scores, 1 / 16))


def test_windows_of_zeros_get_numbers() -> None:
    assert CUR(window=2).score(of_squares([0, 0, 1, 1], [0, 0, 1, 1])).flatten().tolist() == [0, 0, 0.25, 0.25]


@pytest.mark.parametrize("part", [CUR(), CUR(window=4, of="mean"), CUR(window=64, of="key"), CUR(of="value")], ids=str)
def test_scores_are_those_of_the_formula_whatever_the_padding_holds(part: CUR) -> None:
    rows = [random_row(21, 1), random_row(15, 2)]
    obs = observe(rows)
    empty = ~obs.state.valid[..., None]
    keys, values = (x.masked_fill(empty, torch.nan) for x in (obs.state.keys, obs.state.values))
    scores = part.score(replace(obs, state=replace(obs.state, keys=keys, values=values)))
    for i, row in enumerate(rows):
        for head in range(2):
            a, b = (slow_shares(x[head].double().tolist(), part.window) for x in (row.keys, row.values))
            how = {"product": lambda x, y: x * y, "mean": lambda x, y: (x + y) / 2, "key": lambda x, _: x}
            combine = how.get(part.of, lambda _, y: y)
            expected = torch.tensor([combine(x, y) for x, y in zip(a, b, strict=True)])
            torch.testing.assert_close(scores[i, head, -row.length :], expected, rtol=1e-5, atol=1e-6)
