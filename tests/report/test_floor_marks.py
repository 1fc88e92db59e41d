"""Every form of the tables marks scores on which the full cache fails."""

import csv
import io

import pytest

from helpers.founding_example import source
from helpers.report_examples import METRICS, record
from kvfw.analysis.floor import MEANING, NOTE, SIGN
from kvfw.analysis.results import Results, summarise
from kvfw.analysis.sources import Report, make_report
from kvfw.report.csv_files import metrics_csv
from kvfw.report.latex import latex_tables
from kvfw.report.markdown import markdown_tables
from kvfw.report.tables import facet_grids, short_grid, summary_grid


@pytest.fixture(scope="module")
def poor() -> Results:
    """``full`` answers one prompt of four, at two depths."""
    trials = [
        record("full", "ratio=1", 1024, 50.0 * (at // 2), at % 2, metrics={"recall": float(at == 0)}) for at in range(4)
    ]
    return summarise(trials, {}, [info for info in METRICS if info.name == "recall"])


def test_cells_and_notes_carry_the_sign(poor: Results) -> None:
    for grid in (summary_grid(poor), short_grid(poor)):
        assert grid.rows[0][-1].main.endswith(f" {SIGN}")
        assert f"{NOTE}." in grid.notes
    for grid in facet_grids(poor):
        assert grid.columns[-1].title == f"all {SIGN}"
        assert f"{NOTE}." in grid.notes


def test_the_csv_has_the_note_in_words(poor: Results) -> None:
    assert [line["note"] for line in csv.DictReader(io.StringIO(metrics_csv(poor)))] == [MEANING]


def test_a_run_whose_full_succeeds_is_not_marked() -> None:
    report: Report = make_report([source()], resamples=100)
    assert SIGN not in markdown_tables(report)
    assert "ddag" not in latex_tables(report)
    assert MEANING not in metrics_csv(report.results)
