"""From records to results.json."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.report_examples import CONTEXTS, HYBRID, METRICS, SEEDS, experiment, record
from kvfw.analysis.results import (
    FacetScore,
    Results,
    facet_values,
    primary_of,
    read_results,
    row_order,
    summarise,
)
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.errors import StoreError

GOLDEN = Path(__file__).parent / "golden_results.json"
SCHEMA_1 = Path(__file__).parent / "golden_results_1.json"
BEFORE_COMPARISONS = Path(__file__).parent / "golden_results_0.json"


def small_run() -> list[TrialRecord]:
    """Two rows of four trials, one metric half missing."""
    made = []
    for compose, amount, ratio in (("snapkv", "ratio=4", 4.0), ("full", "ratio=1", 1.0)):
        for context in (1024, 2048):
            for seed in (0, 1):
                metrics = {
                    "recall": float(seed == 0 or compose == "full"),
                    "ref_ppl": None if context == 2048 else 1.0 + seed / 4,
                }
                reasons = {} if context == 1024 else {"ref_ppl": "the response is one token"}
                made.append(record(compose, amount, context, 12.5, seed, ratio=ratio, metrics=metrics, reasons=reasons))
    return made


def test_the_results_file_is_as_it_was() -> None:
    """An old results file stays readable, and the same records give the same file."""
    results = summarise(small_run(), {"model": "smollm2-135m", "seeds": 2}, METRICS)
    golden = GOLDEN.read_text(encoding="utf-8")
    assert rounded(results.to_json()) == rounded(golden)
    assert Results.from_json(golden).to_json() == golden


def test_a_file_of_schema_1_has_the_figures_of_today() -> None:
    """Only the words of reasons differ, and tables by facets that were not kept then."""
    old, new = (Results.from_json(path.read_text(encoding="utf-8")) for path in (SCHEMA_1, GOLDEN))
    assert figures(old) == figures(new)
    assert old.primary == new.primary == METRICS[0]
    assert [list(row.by_facet) for row in old.rows] == [[], []]
    assert [list(row.by_facet) for row in new.rows] == [["context", "seed"], ["context", "seed"]]


def test_a_file_of_schema_1_keeps_its_hits_by_depth() -> None:
    data = json.loads(SCHEMA_1.read_text(encoding="utf-8"))
    data["rows"][1]["recall_by_depth"] = {"10": {"hits": 1, "n": 2}, "90": {"hits": 2, "n": 2}}
    assert Results.from_json(json.dumps(data)).rows[1].by_facet == {
        "depth": {"10": FacetScore(mean=0.5, hits=1, n=2), "90": FacetScore(mean=1.0, hits=2, n=2)}
    }


def test_a_file_from_before_comparisons_stays_readable() -> None:
    results, later = (Results.from_json(path.read_text(encoding="utf-8")) for path in (BEFORE_COMPARISONS, SCHEMA_1))
    assert results.comparisons == ()
    assert results.rows == later.rows


def figures(results: Results) -> object:
    """Everything but tables by facets and the words of reasons."""
    data = json.loads(results.to_json())
    for row in data["rows"]:
        del row["by_facet"]
    return without_words(data)


def without_words(data: object) -> object:
    if isinstance(data, dict):
        return {name: sorted(value) if name == "reasons" else without_words(value) for name, value in data.items()}
    return [without_words(value) for value in data] if isinstance(data, list) else data


def test_a_results_file_that_is_missing_or_broken_is_none(tmp_path: Path) -> None:
    assert read_results(tmp_path / "results.json") is None
    for broken in ('{"schema": 1, "rows":', '{"schema": 1, "rows": [3]}', "[]", "{}", '{"schema": 3}'):
        (tmp_path / "results.json").write_text(broken, encoding="utf-8")
        assert read_results(tmp_path / "results.json") is None
    with pytest.raises(StoreError, match="cannot read"):
        read_results(tmp_path)
    results = read_results(GOLDEN)
    assert results is not None
    assert results.rows[0].compose == "full"


def rounded(text: str) -> object:
    """The JSON data without the last digits, in which machines and library versions differ."""
    return json.loads(text, parse_float=lambda number: round(float(number), 9))


def test_the_results_file_has_what_the_design_promises() -> None:
    data = json.loads(summarise(experiment(), {"model": "m"}, METRICS).to_json())
    assert data["schema"] == 2
    assert [info["name"] for info in data["metrics"] if info["primary"]] == ["recall"]
    assert data["config"] == {"model": "m"}
    assert [(row["compose"], row["ratio"], row["n"]) for row in data["rows"]] == [
        ("full", 1.0, 45),
        ("snapkv", 4.0, 45),
        (HYBRID, 4.0, 45),
        ("snapkv", 8.0, 45),
        ("uniform", 8.0, 45),
    ]
    recall = data["rows"][0]["metrics"]["recall"]
    assert recall["mean"] == pytest.approx(41 / 45)
    assert [round(100 * end, 1) for end in recall["ci95"]] == [79.3, 96.5]
    assert recall["ci95_method"] == "wilson"
    assert recall["n"] == 45
    by_facet = data["rows"][0]["by_facet"]
    assert {facet: list(cells) for facet, cells in by_facet.items()} == {
        "context": ["1024", "2048", "3072"],
        "depth": ["10", "30", "50", "70", "90"],
        "seed": ["0", "1", "2"],
    }
    for cells in by_facet.values():
        assert sum(cell["hits"] for cell in cells.values()) == 41
    assert by_facet["depth"]["10"] == {
        "mean": by_facet["depth"]["10"]["hits"] / 9,
        "hits": by_facet["depth"]["10"]["hits"],
        "n": 9,
    }
    assert list(data["rows"][0]["metrics"]) == ["recall", "ref_ppl", "kv_mb", "tok_s", "span_kept"]


def test_full_comes_first_and_the_rest_as_it_appears_or_as_asked() -> None:
    shuffled = [record("b"), record("full", "ratio=1"), record("a"), record("b", "ratio=8")]
    assert [row.compose for row in summarise(shuffled, {}, METRICS).rows] == ["full", "b", "a", "b"]
    keys = [key.key.row for key in shuffled]
    asked = (RowKey("a", "ratio=4"), RowKey("gone", "ratio=4"))
    assert [key.compose for key in row_order(keys, asked)] == ["full", "a", "b", "b"]


def test_unfinished_rows_say_how_far_they_are() -> None:
    rows = summarise([record(seed=0), record(seed=1), record("full", "ratio=1")], {}, METRICS).rows
    assert [(row.compose, row.n) for row in rows] == [("full", 1), ("snapkv", 2)]
    assert rows[0].metrics["recall"].reasons == {"se": "a standard error needs two groups or more, there is 1"}


def test_no_records_give_no_rows() -> None:
    assert summarise([], {}, METRICS).rows == ()


def test_missing_values_are_counted_by_reason_and_never_zero() -> None:
    trials = [
        record(seed=0, metrics={"recall": 1.0, "ref_ppl": None}, reasons={"ref_ppl": "one token"}),
        record(seed=1, metrics={"recall": 1.0, "ref_ppl": None}, reasons={"ref_ppl": "one token"}),
        record(seed=2, metrics={"recall": None}, reasons={"recall": "no answer"}),
    ]
    (row,) = summarise(trials, {}, METRICS).rows
    assert row.metrics["ref_ppl"].mean is None
    assert row.metrics["ref_ppl"].missing == {"not measured in this trial": 1, "one token": 2}
    assert row.metrics["recall"].n == 2
    assert [score.n for score in row.by_facet["seed"].values()] == [1, 1]


def test_values_of_a_facet_without_a_score_are_left_out_and_scores_in_parts_have_no_hits() -> None:
    trials = [
        record(depth=10.0, metrics={"recall": 0.5}),
        record(depth=20.0, metrics={"recall": None}, reasons={"recall": "no answer"}),
    ]
    (row,) = summarise(trials, {}, METRICS).rows
    assert row.by_facet == {"depth": {"10": FacetScore(mean=0.5, hits=None, n=1)}}


def test_facets_of_one_value_or_very_many_make_no_table() -> None:
    found = facet_values(record(context=at, depth=float(at % 2)) for at in range(40))
    assert found == {"depth": [0.0, 1.0]}


def test_facets_may_be_words() -> None:
    trials = [
        record(seed=at).model_copy(update={"facets": {"kind": kind}, "metrics": {"f1": at / 4}})
        for at, kind in enumerate(("what", "who", "what"))
    ]
    results = summarise(trials, {}, [MetricInfo(name="f1", title="F1", primary=True)])
    (row,) = results.rows
    assert row.by_facet == {
        "kind": {"what": FacetScore(mean=0.25, hits=None, n=2), "who": FacetScore(mean=0.25, hits=None, n=1)}
    }


def test_the_primary_score_is_the_marked_one_else_the_first() -> None:
    a, b = MetricInfo(name="a", title="A"), MetricInfo(name="b", title="B", primary=True)
    assert primary_of([a, b]) == b
    assert primary_of([a]) == a
    assert primary_of([]) is None


def test_size_ratios_compare_rows_of_the_same_trials() -> None:
    sizes = {"full": (8.0, 8.0), "a": (2.0, 2.0), "b": (2.0,), "c": ()}
    trials = [
        record(
            compose, "ratio=4", seed=seed, metrics={"recall": 1.0, **({"kv_mb": mb[seed]} if seed < len(mb) else {})}
        )
        for compose, mb in sizes.items()
        for seed in range(2)
    ]
    found = summarise(trials, {}, METRICS).size_ratios
    # An unfinished row is compared on the prompts it has.
    assert found == {RowKey(name, "ratio=4"): ratio for name, ratio in (("full", 1.0), ("a", 4.0), ("b", 4.0))}
    assert summarise([record()], {}, METRICS).size_ratios == {}


def test_size_ratios_are_over_the_same_prompts_only() -> None:
    long: dict[str, float | None] = {"recall": 1.0, "kv_mb": 60.0}
    short: dict[str, float | None] = {"recall": 1.0, "kv_mb": 20.0}
    trials = [
        record("full", "ratio=1", 2048, metrics=long),
        record("full", "ratio=1", 1024, metrics=short),
        record("a", "ratio=4", 2048, metrics={"recall": 1.0, "kv_mb": 15.0}),
        record("b", "ratio=4", 1024, metrics={"recall": 1.0, "kv_mb": 10.0}),
    ]
    other_text = record("c", "ratio=4", 1024, metrics={"recall": 1.0, "kv_mb": 10.0})
    trials.append(other_text.model_copy(update={"prompt_sha256": "cd" * 32}))
    found = summarise(trials, {}, METRICS)
    assert [row.size_ratio for row in found.rows] == [1.0, 4.0, 2.0, None]
    assert Results.from_json(found.to_json()) == found


def test_what_came_of_the_amount_is_beside_what_was_asked() -> None:
    trials = [
        record(seed=seed).model_copy(update={"extra": {"held_ratio": held, "slots_per_head": 100.0 + seed}})
        for seed, held in enumerate((4.0, 5.0))
    ]
    (row,) = summarise(trials, {}, METRICS).rows
    assert (row.ratio, row.held_ratio, row.slots_per_head) == (4.0, 4.5, 100.5)
    # Records of before they were recorded.
    (old,) = summarise([record()], {}, METRICS).rows
    assert (old.ratio, old.held_ratio, old.slots_per_head, old.size_ratio) == (4.0, None, None, None)


def test_seconds_are_means_by_phase_also_where_probes_were_not_recorded_yet() -> None:
    phases = ({"prefill": 1.0, "decode": 2.0}, {"prefill": 3.0, "probe": 0.5, "decode": 4.0})
    trials = [record(seed=seed).model_copy(update={"seconds": phases[seed]}) for seed in range(2)]
    (row,) = summarise(trials, {}, METRICS).rows
    assert row.seconds == {"prefill": 2.0, "decode": 3.0, "probe": 0.5}
    (old,) = summarise(trials[:1], {}, METRICS).rows
    assert old.seconds == phases[0]


def test_a_metric_nobody_described_is_still_reported() -> None:
    results = summarise([record(metrics={"mine": 2.0, "recall": 1.0})], {}, METRICS)
    assert list(results.rows[0].metrics) == ["recall", "mine"]
    assert results.metrics[-1] == MetricInfo(name="mine", title="mine")


def test_an_unknown_ratio_has_a_reason() -> None:
    (row,) = summarise([record(ratio=None)], {}, METRICS).rows
    assert row.ratio is None
    assert row.reasons == {"ratio": "no trial has a value"}


def test_a_trial_counts_once() -> None:
    with pytest.raises(ValueError, match="two records of one trial: snapkv ratio=4 on sample 1024-10-0"):
        summarise([record(), record(response="other")], {}, METRICS)


def test_a_configuration_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        summarise([record()], {"bad": float("nan")}, METRICS)


ORDER = tuple(dict.fromkeys(trial.key.row for trial in experiment()))


@settings(max_examples=4, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 225))
def test_results_do_not_depend_on_the_order_of_records(order: random.Random, kept: int) -> None:
    trials = order.sample(experiment(), kept)
    again = order.sample(trials, kept)
    first, second = (summarise(each, {}, METRICS, order=ORDER, resamples=50) for each in (trials, again))
    assert first.to_json() == second.to_json()


value = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(CONTEXTS), st.sampled_from(SEEDS)),
        st.dictionaries(st.sampled_from([info.name for info in METRICS]), value),
        min_size=1,
    )
)
def test_the_file_is_strict_json_whatever_was_measured(
    measured: dict[tuple[int, int], dict[str, float | None]],
) -> None:
    trials = [
        record(
            context=context,
            seed=seed,
            metrics=metrics,
            reasons={name: "why" for name, number in metrics.items() if number is None},
        )
        for (context, seed), metrics in measured.items()
    ]
    results = summarise(trials, {}, METRICS, resamples=50)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    json.loads(results.to_json(), parse_constant=refuse)
    assert Results.from_json(results.to_json()) == results
