"""How many of the highest scores each head holds."""

import hypothesis.strategies as st
import torch
from hypothesis import given

from helpers.slow_allocators import slow_counts
from kvfw.core.ops.thresholds import counts_above_threshold


def test_a_head_counts_its_scores_among_the_highest_of_all() -> None:
    scores = torch.tensor([[[0.6, 0.3, 0.1], [0.35, 0.33, 0.32]]])
    assert counts_above_threshold(scores, torch.tensor([4])).tolist() == [[1, 3]]


def test_ties_go_to_the_lower_head() -> None:
    assert counts_above_threshold(torch.ones(1, 3, 4), torch.tensor([6])).tolist() == [[4, 2, 0]]


def test_slots_of_minus_infinity_never_count_whatever_other_rows_ask() -> None:
    scores = torch.tensor([[[-torch.inf, 1.0], [-torch.inf, -torch.inf]], [[1.0, 2.0], [3.0, 4.0]]])
    assert counts_above_threshold(scores, torch.tensor([1, 4])).tolist() == [[1, 0], [2, 2]]
    assert counts_above_threshold(scores, torch.tensor([0, 3])).tolist() == [[0, 0], [1, 2]]


def test_nothing_asked_is_nothing_counted() -> None:
    assert counts_above_threshold(torch.full((2, 2, 3), -torch.inf), torch.tensor([0, 0])).tolist() == [[0, 0], [0, 0]]
    assert counts_above_threshold(torch.zeros(0, 2, 3), torch.zeros(0, dtype=torch.int64)).shape == (0, 2)


heads = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.integers(-3, 3), min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(heads, st.data())
def test_counts_are_those_of_a_sorted_list(scores: list[list[int]], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(map(len, scores))))
    rows: list[list[float]] = [[float(x) for x in row] for row in scores]
    found = counts_above_threshold(torch.tensor([rows]), torch.tensor([total]))
    assert found[0].tolist() == slow_counts(rows, total)
