"""Budget arithmetic is exact: no float ever decides how many slots there are."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvfw.core.compose.budget import (
    Amount,
    AmountKind,
    amount,
    check_counts,
    divide,
    fraction,
    fraction_text,
)
from kvfw.errors import BudgetError

fractions = st.fractions(min_value=-1000, max_value=1000, max_denominator=10_000)


@st.composite
def share_lists(draw: st.DrawFn) -> tuple[Fraction, ...]:
    weights = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        ("0.1", Fraction(1, 10)),
        (0.1, Fraction(1, 10)),
        (0.29, Fraction(29, 100)),
        ("1/3", Fraction(1, 3)),
        (" 4 ", Fraction(4)),
        (4, Fraction(4)),
        (4.0, Fraction(4)),
        ("1e-3", Fraction(1, 1000)),
        (Fraction(2, 7), Fraction(2, 7)),
    ],
)
def test_a_number_means_what_is_written(written: str | float | Fraction, exact: Fraction) -> None:
    assert fraction(written, "ratio") == exact


@pytest.mark.parametrize("written", ["", "four", "nan", "inf", "1/0", "1,5", math.nan, math.inf])
def test_what_is_not_a_number_is_named(written: str | float) -> None:
    with pytest.raises(BudgetError, match=r"^keep is .*; it must be a number such as 0\.25 or 1/4$") as caught:
        fraction(written, "keep")
    assert repr(written) in str(caught.value)


@given(fractions)
def test_fraction_text_reads_back_exactly(value: Fraction) -> None:
    assert fraction(fraction_text(value), "share") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(4), "4"),
        (Fraction(0), "0"),
        (Fraction(1, 2), "0.5"),
        (Fraction(-1, 20), "-0.05"),
        (Fraction(1, 3), "1/3"),
        (Fraction(13, 10), "1.3"),
        (Fraction(1, 1024), "0.0009765625"),
    ],
)
def test_fraction_text_is_a_decimal_where_one_ends(value: Fraction, text: str) -> None:
    assert fraction_text(value) == text


def test_a_tenth_of_a_hundred_is_ten() -> None:
    # int(100 * (1 - 0.9)) is 9, int(100 * 0.29) is 28, int(0.57 * 100) is 56.
    assert [amount(keep=keep).middle_slots(100, 4, 84) for keep in ("0.1", 0.1, 0.29, 0.57)] == [10, 10, 29, 57]


@given(st.integers(1, 5000), st.integers(1, 1000))
def test_keep_is_the_floor_of_the_written_fraction(middle: int, per_mille: int) -> None:
    wanted = per_mille * middle // 1000
    text = f"{per_mille / 1000:.3f}"
    if wanted:
        assert amount(keep=text).middle_slots(middle, 4, 8) == wanted
    else:
        with pytest.raises(BudgetError):
            amount(keep=text).middle_slots(middle, 4, 8)


@given(st.integers(1, 5000), st.integers(10, 400))
def test_ratio_is_the_floor_of_the_exact_quotient(middle: int, tenths: int) -> None:
    wanted = 10 * middle // tenths
    text = f"{tenths // 10}.{tenths % 10}"
    if wanted:
        assert amount(ratio=text).middle_slots(middle, 4, 8) == wanted
    else:
        with pytest.raises(BudgetError):
            amount(ratio=text).middle_slots(middle, 4, 8)


@given(st.integers(1, 500), st.integers(0, 20), st.integers(0, 20), st.integers(1, 600))
def test_slots_count_sinks_and_recent(middle: int, sinks: int, recent: int, slots: int) -> None:
    left = slots - sinks - recent
    if left >= 1:
        assert amount(slots=slots).middle_slots(middle, sinks, recent) == min(left, middle)
    else:
        with pytest.raises(BudgetError, match=f"Use at least {sinks + recent + 1} slots"):
            amount(slots=slots).middle_slots(middle, sinks, recent)


@pytest.mark.parametrize("given_amount", [amount(ratio=7), amount(keep="0.2"), amount(slots=1)])
@pytest.mark.parametrize("middle", [0, -3])
def test_without_a_middle_there_is_nothing_to_divide(given_amount: Amount, middle: int) -> None:
    assert given_amount.middle_slots(middle, 4, 84) == 0


@pytest.mark.parametrize(
    ("given_amount", "message"),
    [
        (
            amount(ratio=64),
            "ratio=64 leaves 0 slots for a middle of 40 tokens (4 sinks and 8 recent tokens are always kept). "
            "Use a ratio of at most 40, or a longer prompt",
        ),
        (
            amount(keep="0.01"),
            "keep=0.01 leaves 0 slots for a middle of 40 tokens (4 sinks and 8 recent tokens are always kept). "
            "Use a fraction of at least 1/40, or a longer prompt",
        ),
        (
            amount(slots=5),
            "slots=5 leaves 0 slots for a middle of 40 tokens (4 sinks and 8 recent tokens are always kept). "
            "Use at least 13 slots, or fewer sinks and recent tokens",
        ),
    ],
)
def test_no_slots_are_refused_with_the_way_out(given_amount: Amount, message: str) -> None:
    with pytest.raises(BudgetError) as caught:
        given_amount.middle_slots(40, 4, 8)
    assert str(caught.value) == message


@pytest.mark.parametrize("given_amount", [amount(ratio=40), amount(keep="1/40"), amount(slots=13)])
def test_the_way_out_is_one(given_amount: Amount) -> None:
    assert given_amount.middle_slots(40, 4, 8) == 1


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("ratio", "0.5", "ratio is 0.5; a ratio says how many times smaller"),
        ("ratio", "-4", "must be 1 or more"),
        ("keep", "0", "keep is 0; it is a fraction of the middle, above 0 and at most 1"),
        ("keep", "1.5", "keep is 1.5"),
        ("slots", "0", "slots is 0; it must be a whole number"),
        ("slots", "2.5", "slots is 2.5"),
    ],
)
def test_amounts_out_of_range_are_refused(kind: AmountKind, text: str, message: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Amount.parse(kind, text)
    assert message in str(caught.value)


@given(st.sampled_from(["ratio", "keep", "slots"]), st.integers(1, 400), st.integers(1, 400))
def test_an_amount_prints_so_that_it_reads_back(kind: AmountKind, a: int, b: int) -> None:
    low, high = sorted((a, b))
    value = {"ratio": Fraction(high, low), "keep": Fraction(low, high), "slots": Fraction(a)}[kind]
    made = Amount(kind, value)
    name, text = str(made).split("=")
    assert name == kind
    assert Amount.parse(kind, text) == made


def test_exactly_one_amount_is_given() -> None:
    with pytest.raises(BudgetError, match=r"^give exactly one of ratio=, slots= and keep=; got none of them$"):
        amount()
    with pytest.raises(BudgetError, match=r"got ratio=4, slots=100$"):
        amount(ratio=4, slots=100)
    with pytest.raises(BudgetError, match=r"got ratio=4, slots=0, keep=0$"):
        amount(ratio=4, slots=0, keep=0)
    assert [a.kind for a in (amount(ratio=4), amount(slots=9), amount(keep=0.5))] == ["ratio", "slots", "keep"]


def test_zero_counts_as_given() -> None:
    with pytest.raises(BudgetError, match="slots is 0"):
        amount(slots=0)
    with pytest.raises(BudgetError, match="keep is 0"):
        amount(keep=0)


@given(st.integers(0, 5000), share_lists())
def test_parts_sum_exactly_and_are_less_than_one_slot_off(total: int, shares: tuple[Fraction, ...]) -> None:
    parts = divide(total, shares)
    assert sum(parts) == total
    assert all(abs(part - total * share) < 1 for part, share in zip(parts, shares, strict=True))


@given(st.integers(0, 5000), share_lists())
def test_the_largest_remainders_get_the_slots_left_over(total: int, shares: tuple[Fraction, ...]) -> None:
    parts = divide(total, shares)
    remainders = [total * share - math.floor(total * share) for share in shares]
    got = [part - math.floor(total * share) for part, share in zip(parts, shares, strict=True)]
    by_rule = sorted(range(len(shares)), key=lambda i: (-remainders[i], i))
    assert got == [int(i in by_rule[: sum(got)]) for i in range(len(shares))]


def test_ties_go_to_the_earlier_stage() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    assert divide(5, (half, half)) == (3, 2)
    assert divide(1, (half, half)) == (1, 0)
    assert divide(4, (third, third, third)) == (2, 1, 1)
    assert divide(5, (third, third, third)) == (2, 2, 1)
    # 0.7 and 0.1 of 3 are 2.1 and 0.3: the slot left over goes to 0.2 (0.6), though it is in the middle.
    assert divide(3, (Fraction(7, 10), Fraction(2, 10), Fraction(1, 10))) == (2, 1, 0)


@pytest.mark.parametrize(("sinks", "recent", "message"), [(-1, 0, "sinks is -1"), (0, -2, "recent is -2")])
def test_negative_counts_are_refused(sinks: int, recent: int, message: str) -> None:
    with pytest.raises(BudgetError, match=f"^{message}; .* whole number of tokens always kept, 0 or more$"):
        check_counts(sinks, recent)


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1" * 50, "inf", "nan", "", "1e", True])
def test_numbers_nobody_means_are_refused_at_once(text: str) -> None:
    with pytest.raises(BudgetError, match="ratio is"):
        Amount.parse("ratio", text)
