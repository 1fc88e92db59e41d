"""Paired tests against values counted by hand, the libraries themselves, and their limiting cases."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from helpers.founding_example import founding
from helpers.report_examples import METRICS, record
from kvfw.analysis.compare import (
    Comparison,
    Pair,
    compare,
    compare_rows,
    default_references,
    holm,
    mcnemar,
)
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord

RECALL, REF_PPL = METRICS[0], METRICS[1]
PLAIN = MetricInfo(name="plain", title="Plain")
ROW, REFERENCE = RowKey("a", "ratio=4"), RowKey("full", "ratio=1")


def pairs(*values: tuple[float, float], strata: int = 3) -> list[Pair]:
    """Each pair is a group of its own, dealt to the strata in turn."""
    return [Pair(*pair, f"{at % strata + 1}/{at // strata}") for at, pair in enumerate(values)]


def test_mcnemar_by_hand() -> None:
    # 1 of 8 on one side: 2 (1 + 8) / 2^8.
    assert mcnemar(1, 7) == pytest.approx(18 / 256)
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    assert mcnemar(3, 3) == 1
    assert mcnemar(0, 0) == 1


@pytest.mark.parametrize("discordant", range(6))
def test_fewer_than_six_discordant_pairs_never_decide(discordant: int) -> None:
    assert min(mcnemar(gained, discordant - gained) for gained in range(discordant + 1)) > 0.05
    assert mcnemar(0, 6) < 0.05


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 100))
def test_mcnemar_agrees_with_statsmodels_and_ignores_the_direction(gained: int, lost: int, both: int) -> None:
    assert mcnemar(gained, lost) == pytest.approx(statsmodels_mcnemar([[both, gained], [lost, 0]], exact=True).pvalue)
    assert mcnemar(gained, lost) == mcnemar(lost, gained)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 and 3"):
        mcnemar(-1, 3)


def test_holm_by_hand() -> None:
    # Sorted .01 .03 .04: times 3, 2, 1 and never falling.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_only_raises_and_keeps_the_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(value - 1e-12 <= high <= 1 for value, high in zip(values, adjusted, strict=True))
    ranked = [high for _, high in sorted(zip(values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_a_comparison_of_recall_by_hand() -> None:
    found = compare(RECALL, ROW, REFERENCE, pairs(*[(0, 1)] * 7, (1, 0), (1, 1), (0, 0)), resamples=99)
    assert (found.gained, found.lost, found.pairs, found.test) == (1, 7, 10, "mcnemar")
    assert found.difference == pytest.approx(-0.6)
    assert found.p == found.p_holm == pytest.approx(18 / 256)
    assert found.verdict == "no difference shown"


@pytest.mark.parametrize(("lost", "verdict"), [(0, "cannot decide"), (5, "cannot decide"), (6, "lower"), (9, "lower")])
def test_the_verdict_says_when_pairs_are_too_few(lost: int, verdict: str) -> None:
    values = [(0.0, 1.0)] * lost + [(1.0, 1.0)] * (12 - lost)
    assert compare(RECALL, ROW, REFERENCE, pairs(*values), resamples=99).verdict == verdict


def test_perplexities_are_compared_by_their_logarithm() -> None:
    values = [(math.e**2, math.e), (math.e**4, math.e), (math.e, math.e)] * 3
    found = compare(REF_PPL, ROW, REFERENCE, pairs(*values, strata=1))
    assert found.scale == "log"
    assert found.difference == pytest.approx(4 / 3)
    # The same as the plain differences 1, 3 and 0 of another metric.
    plain = compare(PLAIN, ROW, REFERENCE, pairs(*[(1, 0), (3, 0), (0, 0)] * 3, strata=1))
    assert plain.ci95 is not None
    assert found.ci95 == pytest.approx(plain.ci95)
    assert found.p == plain.p


def test_the_bootstrap_agrees_with_all_possible_samples() -> None:
    """Two strata of three groups have 729 samples; interval and p approach the enumerated ones."""
    differences = {1: [-0.5, 1.0, 2.0], 2: [-1.5, 0.5, 1.5]}
    means = np.array(
        [
            statistics.fmean((*first, *second))
            for first in itertools.product(differences[1], repeat=3)
            for second in itertools.product(differences[2], repeat=3)
        ]
    )
    found = compare(
        PLAIN,
        ROW,
        REFERENCE,
        [Pair(value, 0.0, f"{at}/{rank}") for at, values in differences.items() for rank, value in enumerate(values)],
    )
    assert found.ci95 == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.1)
    assert found.p == pytest.approx(2 * float(np.mean(means <= 0)), abs=0.02)


def test_differences_of_one_sign_have_the_smallest_p_there_is() -> None:
    found = compare(PLAIN, ROW, REFERENCE, pairs(*[(2.0, 1.0), (3.0, 1.0)] * 5), resamples=99)
    assert found.p == pytest.approx(2 / 100)
    assert found.verdict == "higher"


def test_few_groups_are_marked_and_fewer_than_six_decide_nothing() -> None:
    five, six, ten = (compare(PLAIN, ROW, REFERENCE, pairs(*[(2.0, 1.0)] * n, strata=1)) for n in (5, 6, 10))
    assert (five.verdict, five.few_groups) == ("cannot decide", True)
    assert (six.verdict, six.few_groups) == ("higher", True)
    assert (ten.verdict, ten.few_groups) == ("higher", False)


@pytest.mark.parametrize("info", [RECALL, REF_PPL, PLAIN])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_rows_differ_by_nothing(info: MetricInfo, value: float) -> None:
    value = value if info is not REF_PPL else value + 1
    found = compare(info, ROW, REFERENCE, pairs(*[(value, value)] * 12), resamples=99)
    assert (found.difference, found.ci95, found.p) == (0, (0, 0), 1)
    assert found.verdict == ("cannot decide" if info is RECALL else "no difference shown")


@pytest.mark.parametrize("info", [RECALL, PLAIN])
def test_one_trial_gives_reasons(info: MetricInfo) -> None:
    found = compare(info, ROW, REFERENCE, pairs((1.0, 0.0)))
    assert found.difference == 1
    assert found.reasons["ci95"] == "resampling needs two groups or more in every stratum, there is 1 in 1"
    assert ("p" in found.reasons) == (info is PLAIN)
    assert found.verdict == "cannot decide"


@pytest.mark.parametrize("info", [RECALL, REF_PPL])
def test_no_common_prompt_gives_a_reason_everywhere(info: MetricInfo) -> None:
    found = compare(info, ROW, REFERENCE, [])
    assert set(found.reasons.values()) == {"the two rows have no prompt with a value in both"}
    assert set(found.reasons) == {"difference", "ci95", "p", "p_holm"}
    assert found.verdict == "cannot decide"


def test_recall_in_parts_has_no_mcnemar() -> None:
    found = compare(RECALL, ROW, REFERENCE, pairs((0.5, 1.0), (1.0, 1.0)))
    assert found.gained is None
    assert "neither hit nor miss" in found.reasons["p"]


def test_a_perplexity_of_zero_has_a_reason() -> None:
    found = compare(REF_PPL, ROW, REFERENCE, pairs((0.0, 1.0), (1.0, 1.0)))
    assert found.reasons["p"] == found.reasons["difference"] == "a perplexity of 0 or less has no logarithm"


def trials(*rows: str) -> list[TrialRecord]:
    return [
        record(compose, amount, seed=seed, metrics={"recall": float(seed < 2)})
        for compose, _, amount in (row.partition(" ") for row in rows)
        for seed in range(3)
    ]


def compared(*rows: str, references: list[RowKey] | None = None) -> list[str]:
    made = trials(*rows)
    keys = list(dict.fromkeys(each.key.row for each in made))
    return [
        f"{each.row.compose} {each.row.amount} vs {each.reference.compose} {each.reference.amount}"
        for each in compare_rows(keys, made, [RECALL], references, resamples=9)
    ]


def test_references_are_full_and_the_first_composition_at_the_same_amount() -> None:
    assert compared("full 1", "a 4", "b 4", "a 8", "b 8") == [
        "a 4 vs full 1",
        "b 4 vs full 1",
        "a 8 vs full 1",
        "b 8 vs full 1",
        "b 4 vs a 4",
        "b 8 vs a 8",
    ]


def test_a_reference_that_was_not_run_at_an_amount_stands_as_named() -> None:
    assert compared("full 1", "a 4", "b 8", references=[RowKey("a", "4")]) == ["full 1 vs a 4", "b 8 vs a 4"]


def test_no_pair_is_tested_twice() -> None:
    both = [RowKey("a", "4"), RowKey("b", "4")]
    assert compared("a 4", "b 4", references=both) == ["b 4 vs a 4"]


def test_default_references_as_far_as_they_are_there() -> None:
    full, first = RowKey("full", "ratio=1"), RowKey("a", "ratio=4")
    assert default_references([full, first, RowKey("b", "ratio=4")]) == (full, first)
    assert default_references([full]) == (full,)
    assert default_references([]) == ()
    assert compared("full 1") == []


def test_an_unknown_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no such row: c 4"):
        compared("a 4", references=[RowKey("c", "4")])


def test_the_same_place_with_another_text_is_no_pair() -> None:
    other = record("full", "ratio=1").model_copy(update={"prompt_sha256": "cd" * 32})
    (found,) = compare_rows([ROW, REFERENCE], [record("a"), other], [RECALL], [REFERENCE])
    assert found.pairs == 0


def test_a_family_is_one_metric_against_one_reference() -> None:
    made = founding()
    rows = list(dict.fromkeys(each.key.row for each in made))
    found = compare_rows(rows, made, METRICS[:2], resamples=199)
    families: dict[tuple[str, str], list[Comparison]] = {}
    for each in found:
        families.setdefault((each.metric, each.reference.compose), []).append(each)
    assert {key: len(group) for key, group in families.items()} == {
        ("recall", "full"): 16,
        ("ref_ppl", "full"): 16,
        ("recall", "uniform"): 14,
        ("ref_ppl", "uniform"): 14,
    }
    for group in families.values():
        assert {each.family for each in group} == {len(group)}
        assert [each.p_holm for each in group] == pytest.approx(holm([each.p for each in group if each.p is not None]))
    snapkv = next(each for each in families["recall", "full"] if each.row.compose == "snapkv")
    assert (snapkv.gained, snapkv.lost, snapkv.verdict) == (0, 3, "cannot decide")


value = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2]), st.integers(0, 2), value),
        unique_by=lambda each: each[:3],
        max_size=14,
    ),
    st.sampled_from(METRICS),
)
def test_every_number_is_finite_or_explained(
    measured: list[tuple[str, int, int, float | None]], info: MetricInfo
) -> None:
    made = [
        record(
            compose,
            context=context,
            seed=seed,
            metrics={info.name: number},
            reasons={} if number is not None else {info.name: "why"},
        )
        for compose, context, seed, number in measured
    ]
    rows = list(dict.fromkeys(each.key.row for each in made))
    for found in compare_rows(rows, made, [info], resamples=50):
        # The model itself refuses NaN, infinity and a null without its reason.
        assert Comparison.model_validate_json(found.model_dump_json()) == found
        if found.p is not None:
            assert found.p_holm is not None
            assert found.p_holm >= found.p - 1e-12


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=6, max_size=18))
def test_turning_a_comparison_round_turns_its_sign(values: list[tuple[float, float]]) -> None:
    there = compare(PLAIN, ROW, REFERENCE, pairs(*values), resamples=200)
    back = compare(PLAIN, REFERENCE, ROW, pairs(*[(b, a) for a, b in values]), resamples=200)
    assert there.difference is not None
    assert back.difference == pytest.approx(-there.difference)
    assert there.pairs == back.pairs


def test_results_name_their_comparisons() -> None:
    from kvfw.analysis.results import Results, summarise

    results = summarise(founding(), {}, METRICS, resamples=50, references=[RowKey("snapkv", "ratio=4")])
    assert {each.reference.compose for each in results.comparisons} == {"snapkv"}
    assert {each.reference.amount for each in results.comparisons if each.row.amount == "ratio=8"} == {"ratio=8"}
    assert Results.model_validate_json(results.to_json()) == results
