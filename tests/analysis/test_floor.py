"""Scores are marked where the full cache itself fails."""

import pytest

from helpers.report_examples import record
from kvfw.analysis.floor import NOTE, below_floor
from kvfw.analysis.results import Results, summarise
from kvfw.core.contracts.records import MetricInfo

SHARE = MetricInfo(name="right", title="Right", unit="%", proportion=True, higher_is_better=True, primary=True)


def run(hits: int, info: MetricInfo = SHARE, compose: str = "full") -> Results:
    """Four trials of one row, of which the first ``hits`` score 1."""
    trials = [
        record(compose, "ratio=1", 1024, 50.0, seed, metrics={info.name: float(seed < hits)}) for seed in range(4)
    ]
    return summarise(trials, {}, [info])


@pytest.mark.parametrize(("hits", "marked"), [(0, {"right"}), (1, {"right"}), (2, set()), (4, set())])
def test_a_share_is_marked_where_full_is_below_one_half(hits: int, marked: set[str]) -> None:
    assert below_floor(run(hits)) == marked


def test_the_full_row_of_any_run_counts() -> None:
    assert below_floor(run(1, compose="full [runs/a]")) == {"right"}


def test_a_poor_compressed_row_marks_nothing() -> None:
    assert below_floor(run(0, compose="snapkv")) == frozenset()


@pytest.mark.parametrize("change", [{"unit": ""}, {"higher_is_better": False}, {"higher_is_better": None}])
def test_what_is_no_share_is_never_marked(change: dict[str, object]) -> None:
    assert below_floor(run(0, SHARE.model_copy(update=change))) == frozenset()


def test_the_note_names_the_floor() -> None:
    assert NOTE == "‡ full is below 50 %: decides nothing"
