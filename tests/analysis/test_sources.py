"""Which runs may stand side by side, and how their rows are called."""

import pytest
from pydantic import JsonValue

from helpers.founding_example import founding, source
from helpers.report_examples import HYBRID, record
from kvfw.analysis.names import is_full, labelled, method_of, visible
from kvfw.analysis.sources import make_report, unique_names
from kvfw.errors import RequestError
from kvfw.report.texts import plain_text


def test_one_run_keeps_its_names_and_its_order() -> None:
    report = make_report([source(name="a", problems=("line 3 skipped",))], resamples=20)
    assert [row.compose for row in report.results.rows][:3] == ["full", "uniform", "streaming"]
    assert report.results.config == source().settings
    assert report.notes == ("line 3 skipped",)


def test_rows_of_several_runs_are_labelled_where_they_repeat() -> None:
    first = source([record("full", "ratio=1"), record("snapkv"), record("h2o", "ratio=8")], "runs-a")
    second = source(
        [record("full", "ratio=1"), record("snapkv"), record(HYBRID, "ratio=8")], "runs-b", changed={"recent": 64}
    )
    report = make_report([first, second], resamples=20)
    assert [(row.compose, row.amount) for row in report.results.rows] == [
        ("full [runs-a]", "ratio=1"),
        ("full [runs-b]", "ratio=1"),
        ("snapkv [runs-a]", "ratio=4"),
        ("snapkv [runs-b]", "ratio=4"),
        ("h2o", "ratio=8"),
        (HYBRID, "ratio=8"),
    ]
    assert report.notes == (
        "Speeds of different runs were measured at different times and cannot be compared.",
        "The runs differ in recent: 84 in runs-a, 64 in runs-b.",
    )
    assert {each.reference.compose for each in report.results.comparisons} == {"full [runs-a]", "snapkv [runs-a]"}
    assert len(report.records) == 6


def test_runs_of_one_name_are_numbered() -> None:
    assert unique_names(["a", "b", "a"]) == ("a #1", "b", "a #2")
    report = make_report([source([record("snapkv")], "x"), source([record("snapkv")], "x")], resamples=20)
    assert [row.compose for row in report.results.rows] == ["snapkv [x #1]", "snapkv [x #2]"]


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("model", "other", 'model: "smollm2-135m" in a, "other" in b'),
        ("task", "copy", 'task: "niah" in a, "copy" in b'),
        ("question_aware", False, "question_aware: true in a, false in b"),
        ("prompts_sha256", "cd", "prompts_sha256"),
        ("dtype", "bfloat16", 'dtype: nothing in a, "bfloat16" in b'),
    ],
)
def test_other_experiments_are_refused_with_both_values(setting: str, value: str | bool, shown: str) -> None:
    with pytest.raises(RequestError, match="a and b cannot be compared") as caught:
        make_report([source([record()], "a"), source([record()], "b", changed={setting: value})])
    assert shown in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_makes_other_rows_may_differ() -> None:
    other = source([record("h2o")], "b", changed={"compose": ["h2o"], "amounts": ["ratio=16"], "sinks": 2})
    assert len(make_report([source([record()], "a"), other], resamples=20).results.rows) == 2


def test_no_run_and_no_trial_are_said() -> None:
    with pytest.raises(RequestError, match="no run to report"):
        make_report([])
    with pytest.raises(RequestError, match=r"b holds no trial that can be read \(line 1 skipped\)"):
        make_report([source([record()], "a"), source([], "b", problems=("line 1 skipped",))])


def test_references_are_found_by_composition_with_or_without_their_run() -> None:
    both = [source([record("full", "ratio=1"), record("a"), record("b")], name) for name in "xy"]
    for text in ("a", "a [y]"):
        found = make_report(both, [text], resamples=20).results.comparisons
        assert {each.reference.compose for each in found} <= {"a [x]", "a [y]"}
    with pytest.raises(RequestError, match="reference 'c' is no row of the report; rows: a"):
        make_report([source([record("a")])], ["c"])


def test_founding_references_follow_the_amount() -> None:
    found = make_report([source()], ["snapkv"], resamples=20).results.comparisons
    assert {(each.row.amount, each.reference.amount) for each in found} == {
        ("ratio=1", "ratio=4"),
        ("ratio=4", "ratio=4"),
        ("ratio=8", "ratio=8"),
    }
    assert len(founding()) == 17 * 45


def test_labels_come_off_again() -> None:
    assert method_of(labelled("a(b=[1]):0.5", "my run [2]")) == "a(b=[1]):0.5"
    assert method_of("a") == "a"
    assert is_full("full [x]")
    assert not is_full("fuller")


def test_invisible_characters_are_shown() -> None:
    assert visible("a\u202eb\x00\r\nc\td") == "a\\u202eb\\u0000\nc d"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (True, "yes"), ([1, 2.0], "1, 2"), ([], "–"), ({"a": 0.5}, "a 0.5"), ({}, "–"), ("x", "x")],
)
def test_settings_are_written_as_people_write(value: JsonValue, text: str) -> None:
    assert plain_text(value) == text
