"""From records to results.json."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.report_examples import CONTEXTS, HYBRID, METRICS, SEEDS, experiment, record
from kvfw.analysis.results import Results, depth_text, read_results, row_order, summarise
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.errors import StoreError

GOLDEN = Path(__file__).parent / "golden_results.json"
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
    assert Results.model_validate_json(golden).to_json() == golden


def test_a_file_from_before_comparisons_stays_readable() -> None:
    old = BEFORE_COMPARISONS.read_text(encoding="utf-8")
    results = Results.model_validate_json(old)
    assert results.comparisons == ()
    assert {**json.loads(old), "comparisons": []} == json.loads(results.to_json())
    assert results.rows == Results.model_validate_json(GOLDEN.read_text(encoding="utf-8")).rows


def test_a_results_file_that_is_missing_or_broken_is_none(tmp_path: Path) -> None:
    assert read_results(tmp_path / "results.json") is None
    (tmp_path / "results.json").write_text('{"schema": 1, "rows":', encoding="utf-8")
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
    assert data["schema"] == 1
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
    assert sum(cell["hits"] for cell in data["rows"][0]["recall_by_depth"].values()) == 41
    assert {cell["n"] for cell in data["rows"][0]["recall_by_depth"].values()} == {9}
    assert list(data["rows"][0]["recall_by_depth"]) == ["10", "30", "50", "70", "90"]
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
    assert rows[0].metrics["recall"].reasons == {"se": "a standard error needs two runs or more, there is 1"}


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
    assert row.recall_by_depth["10"].n == 2


def test_depths_without_a_value_and_recall_in_parts_are_left_out() -> None:
    nothing = record(metrics={"recall": None}, reasons={"recall": "no answer"})
    assert summarise([nothing], {}, METRICS).rows[0].recall_by_depth == {}
    assert summarise([record(metrics={"recall": 0.5})], {}, METRICS).rows[0].recall_by_depth == {}


def test_a_metric_nobody_described_is_still_reported() -> None:
    results = summarise([record(metrics={"mine": 2.0, "recall": 1.0})], {}, METRICS)
    assert list(results.rows[0].metrics) == ["recall", "mine"]
    assert results.metrics[-1] == MetricInfo(name="mine", title="mine")


def test_an_unknown_ratio_has_a_reason() -> None:
    (row,) = summarise([record(ratio=None)], {}, METRICS).rows
    assert row.ratio is None
    assert row.reasons == {"ratio": "no trial has a value"}


def test_a_trial_counts_once() -> None:
    with pytest.raises(ValueError, match="two records of one trial: snapkv ratio=4 at 1024 tokens"):
        summarise([record(), record(response="other")], {}, METRICS)


def test_a_configuration_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        summarise([record()], {"bad": float("nan")}, METRICS)


@pytest.mark.parametrize(("depth", "text"), [(10.0, "10"), (12.5, "12.5"), (0.0, "0"), (33.3, "33.3")])
def test_depths_are_written_without_needless_decimals(depth: float, text: str) -> None:
    assert depth_text(depth) == text


ORDER = tuple(dict.fromkeys(trial.key.row for trial in experiment()))


@settings(max_examples=8, deadline=None)
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
    assert Results.model_validate_json(results.to_json()) == results
