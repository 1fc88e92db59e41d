"""Whole numbers of slots: exact totals, within bounds, as near to the amounts as whole numbers can be."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from helpers.slow_allocators import slow_by_weight, slow_rounded
from kvfw.core.ops.rounding import by_weight, rounded


def whole(*numbers: int) -> torch.Tensor:
    return torch.tensor([numbers])


def real(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def test_whole_amounts_stay() -> None:
    assert rounded(real(1.0, 3.0), torch.tensor([4]), whole(9, 9)).tolist() == [[1, 3]]


def test_largest_remainders_are_rounded_up_the_earlier_of_equals_first() -> None:
    total, most = torch.tensor([4]), whole(9, 9, 9)
    assert rounded(real(1.2, 1.3, 1.5), total, most).tolist() == [[1, 1, 2]]
    assert rounded(real(4 / 3, 4 / 3, 4 / 3), total, most).tolist() == [[2, 1, 1]]


def test_remainders_that_differ_by_rounding_alone_are_equal() -> None:
    assert rounded(real(0.5, 0.5 + 1e-12), torch.tensor([1]), whole(1, 1)).tolist() == [[1, 0]]
    assert rounded(real(3 - 1e-12, 2 + 1e-12), torch.tensor([5]), whole(9, 9)).tolist() == [[3, 2]]


def test_weights_divide_the_total() -> None:
    assert by_weight(real(1, 3), torch.tensor([8]), whole(9, 9)).tolist() == [[2, 6]]


def test_what_exceeds_an_entrys_limit_is_divided_among_the_others_by_weight() -> None:
    assert by_weight(real(8, 1, 3), torch.tensor([12]), whole(4, 9, 9)).tolist() == [[4, 2, 6]]


def test_an_entry_of_weight_0_gets_something_only_when_the_others_are_full() -> None:
    assert by_weight(real(0, 5, 0), torch.tensor([3]), whole(4, 4, 4)).tolist() == [[0, 3, 0]]
    assert by_weight(real(0, 5, 0), torch.tensor([7]), whole(4, 4, 4)).tolist() == [[2, 4, 1]]


def test_what_is_given_beforehand_comes_first() -> None:
    assert by_weight(real(3, 1), torch.tensor([16]), whole(20, 20), real(4, 4)).tolist() == [[10, 6]]


def test_what_cannot_be_given_beforehand_goes_to_the_others() -> None:
    assert by_weight(real(1, 1, 2), torch.tensor([30]), whole(1, 40, 40), real(10, 10, 10)).tolist() == [[1, 13, 16]]


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e200])
def test_a_common_factor_of_the_weights_changes_nothing(scale: float) -> None:
    weights = real(1, 2, 4)
    assert by_weight(weights * scale, torch.tensor([11]), whole(5, 5, 5)).tolist() == [[2, 4, 5]]


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[int], int, list[int], Fraction]:
    count = draw(st.integers(1, 6))
    weights = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    most = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    total = draw(st.integers(0, sum(most)))
    floor = draw(st.sampled_from([Fraction(0), Fraction(1, 5), Fraction(1, 2), Fraction(1)]))
    return weights, total, most, floor


@given(st.lists(divisions(), min_size=1, max_size=3))
def test_division_by_weight_is_that_of_fractions_row_by_row(
    cases: list[tuple[list[int], int, list[int], Fraction]],
) -> None:
    count = max(len(weights) for weights, *_ in cases)
    rows = [(w + [0] * (count - len(w)), total, m + [0] * (count - len(m)), floor) for w, total, m, floor in cases]
    least = [[floor * total / count] * count for _, total, _, floor in rows]
    found = by_weight(
        torch.tensor([w for w, *_ in rows], dtype=torch.float64),
        torch.tensor([total for _, total, *_ in rows]),
        torch.tensor([m for _, _, m, _ in rows]),
        torch.tensor([[float(x) for x in each] for each in least], dtype=torch.float64),
    )
    slow = [
        slow_by_weight([Fraction(x) for x in w], total, m, each)
        for (w, total, m, _), each in zip(rows, least, strict=True)
    ]
    assert found.tolist() == slow


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.data())
def test_rounding_is_that_of_fractions(sixths: list[int], data: st.DataObject) -> None:
    sixths[0] += -sum(sixths) % 6
    amounts = [Fraction(n, 6) for n in sixths]
    total = int(sum(amounts))
    most = [-int(-a // 1) + data.draw(st.integers(0, 2)) for a in amounts]
    found = rounded(real(*map(float, amounts)), torch.tensor([total]), whole(*most))
    assert found[0].tolist() == slow_rounded(amounts, total, most)
