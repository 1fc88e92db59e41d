"""Statistics against published values, plain formulas and their limiting cases."""

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfw.analysis.stats import (
    Estimate,
    Summary,
    cluster_bootstrap_ci,
    group_se,
    mean,
    natural,
    summarise_values,
    wilson,
)


def groups(*values: Sequence[float], strata: int = 1) -> dict[str, Sequence[float]]:
    """The value lists as groups, dealt to this many strata in turn."""
    return {f"{1024 * (at % strata + 1)}/{at // strata}": list(group) for at, group in enumerate(values)}


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(41, 45, 79.3, 96.5), (38, 45, 71.2, 92.3), (21, 45, 32.9, 60.9), (0, 45, 0.0, 7.9)],
)
def test_wilson_gives_the_published_intervals(hits: int, n: int, low: float, high: float) -> None:
    interval = wilson(hits, n).value
    assert interval is not None
    assert [round(100 * end, 1) for end in interval] == [low, high]


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_its_formula(case: tuple[int, int]) -> None:
    hits, n = case
    z, p = statistics.NormalDist().inv_cdf(0.975), hits / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    assert wilson(hits, n).value == pytest.approx(expected, abs=1e-12)


def test_wilson_of_nothing_is_nothing_and_of_nonsense_an_error() -> None:
    assert wilson(0, 0) == Estimate(None, "no trial has a value")
    for hits in (-1, 6):
        with pytest.raises(ValueError, match="hits of 5 trials"):
            wilson(hits, 5)


def test_the_standard_error_is_that_of_the_group_means() -> None:
    # Group means 1, 2, 3: sd = 1 over sqrt(3); a group without values does not count.
    estimate = group_se(groups([0.0, 2.0], [2.0], [3.0, 3.0, 3.0], []))
    assert estimate.value == pytest.approx(1 / math.sqrt(3))


def test_a_standard_error_of_fewer_than_two_groups_has_a_reason() -> None:
    assert group_se(groups([1.0, 2.0])).reason == "a standard error needs two groups or more, there is 1"
    assert group_se({}).reason == "a standard error needs two groups or more, there are 0"


def test_a_mean_over_nothing_is_not_zero() -> None:
    assert mean([]) == Estimate(None, "no trial has a value")


def test_the_bootstrap_draws_groups_within_each_stratum() -> None:
    # Strata differ a lot, their groups not at all: only drawing strata would widen the interval.
    level = {f"{stratum}/{at}": [float(stratum)] * 5 for stratum in (1, 2, 9) for at in range(3)}
    assert cluster_bootstrap_ci(level).value == pytest.approx((4.0, 4.0))


def test_the_bootstrap_draws_whole_groups() -> None:
    # Trials of a group cancel out: groups are equal, so nothing varies between them.
    assert cluster_bootstrap_ci(groups([-1.0, 1.0], [-5.0, 5.0], [-9.0, 9.0])).value == pytest.approx((0.0, 0.0))


def test_the_bootstrap_agrees_with_all_possible_samples() -> None:
    """Two strata of three groups have 729 samples; the drawn quantiles approach the enumerated ones."""
    by_stratum = [[[1.0, 2.0], [3.0], [8.0, 9.0, 9.5]], [[0.5], [4.0, 5.0], [6.5, 7.0]]]
    values = {f"{at}/{rank}": group for at, stratum in enumerate(by_stratum) for rank, group in enumerate(stratum)}
    means = [
        statistics.fmean(itertools.chain(*first, *second))
        for first in itertools.product(by_stratum[0], repeat=3)
        for second in itertools.product(by_stratum[1], repeat=3)
    ]
    exact = np.quantile(means, [0.025, 0.975])
    assert cluster_bootstrap_ci(values).value == pytest.approx(exact, abs=0.1)


def test_the_bootstrap_repeats_itself_and_ignores_order() -> None:
    values = groups([1.0, 2.0], [3.0, 5.0], [4.0], [7.0, 1.0], [2.5], [0.5], strata=2)
    turned = {group: list(reversed(values[group])) for group in reversed(values)}
    assert cluster_bootstrap_ci(values) == cluster_bootstrap_ci(turned)
    few = [cluster_bootstrap_ci(values, resamples=9, seed=seed) for seed in (0, 1)]
    assert few[0] != few[1]


def test_groups_are_drawn_in_the_order_of_their_numbers() -> None:
    """So that names which sort differently as texts draw the same samples."""
    few, many = (
        {f"{name}/{at}": [float(at), at / 7] for at in range(12) for name in names} for names in ("89", ("9", "10"))
    )
    assert cluster_bootstrap_ci(few) == cluster_bootstrap_ci(many)
    assert sorted(["b", "10/2", "9/10", "9/2", "a/1"], key=natural) == ["9/2", "9/10", "10/2", "a/1", "b"]


def test_a_bootstrap_without_groups_to_draw_has_a_reason() -> None:
    assert cluster_bootstrap_ci({}).reason == "no trial has a value"
    reason = cluster_bootstrap_ci(groups([1.0], [2.0], [3.0], strata=2)).reason
    assert reason == "resampling needs two groups or more in every stratum, there is 1 in 2048"
    assert cluster_bootstrap_ci({"a": [1.0]}).reason == "resampling needs two groups or more, there is 1"
    assert cluster_bootstrap_ci(groups([1.0, 2.0])).value is None


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e-300, 1e100])
def test_equal_values_give_an_interval_of_no_width(value: float) -> None:
    summary = summarise_values(groups([value] * 3, [value] * 2, [value]), proportion=False)
    assert summary.mean == pytest.approx(value, rel=1e-15)
    assert summary.ci95 == (value, value)


def test_a_summary_of_nothing_says_why_in_every_place() -> None:
    summary = summarise_values({}, proportion=True, missing={"one token only": 3})
    assert (summary.mean, summary.se, summary.ci95, summary.n) == (None, None, None, 0)
    assert set(summary.reasons) == {"mean", "se", "ci95"}
    assert summary.missing == {"one token only": 3}


def test_few_groups_mark_bootstrap_intervals_only() -> None:
    nine, ten = groups(*[[0.0]] * 9), groups(*[[0.0]] * 10)
    assert summarise_values(nine, proportion=False).few_groups
    assert not summarise_values(ten, proportion=False).few_groups
    assert not summarise_values(nine, proportion=True).few_groups


def test_a_proportion_of_parts_has_no_binomial_interval() -> None:
    summary = summarise_values(groups([0.5], [1.0]), proportion=True)
    assert summary.ci95 is None
    assert "neither hit nor miss" in summary.reasons["ci95"]
    assert summary.mean == 0.75


@pytest.mark.parametrize("proportion", [True, False])
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["1024/0", "1024/1", "2048/0", "2048/1", "b", "c"]),
        st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
        max_size=6,
    )
)
def test_every_statistic_is_finite_or_explained(proportion: bool, values: dict[str, list[float]]) -> None:
    summary = summarise_values(values, proportion=proportion, resamples=99)
    # The model itself refuses NaN, infinity and a null without its reason.
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    if summary.ci95 is not None and not proportion:
        everything = [value for group in values.values() for value in group]
        assert min(everything) <= summary.ci95[0] <= summary.ci95[1] <= max(everything)
