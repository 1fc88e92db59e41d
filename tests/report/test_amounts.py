"""What was asked for and what came of it: size ratios and footnotes in every format, and as an axis of figures."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from helpers.founding_example import source
from helpers.report_examples import METRICS, experiment, record
from kvfw.analysis.results import Results, summarise
from kvfw.analysis.sources import Report, make_report
from kvfw.core.contracts.records import TrialRecord
from kvfw.report.csv_files import metrics_csv
from kvfw.report.html import html_page
from kvfw.report.latex import latex_tables
from kvfw.report.markdown import markdown_tables
from kvfw.report.scatter import XAxis, scatter_plots
from kvfw.report.tables import comparison_grids, facet_grids, short_grid, summary_grid
from kvfw.report.terminal import plain_lines, results_table

POLICIES = "[0-1]full;[2-]snapkv"
THRESHOLD = "snapkv@simlayer"


def trials() -> list[TrialRecord]:
    """A row as asked, one whose first layers stay whole, and one whose allocator kept a third less than its total."""
    rows = (("full", "ratio=1", 1.0, 41), (POLICIES, "ratio=4", 4.0, 36), (THRESHOLD, "ratio=4", 4.0, 30))
    held = {"full": (1.0, 1.0), POLICIES: (4.0, 2.5), THRESHOLD: (6.0, 6.0)}
    return [
        one.model_copy(
            update={
                "extra": {"held_ratio": held[one.key.compose][0], "slots_per_head": 400.0},
                "metrics": {**one.metrics, "kv_mb": 20 / held[one.key.compose][1]},
            }
        )
        for one in experiment(rows)
    ]


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report([source(trials())], resamples=50)


@pytest.fixture(scope="module")
def results(report: Report) -> Results:
    return report.results


def test_every_table_has_the_size_ratio_and_marks_the_row_that_missed_its_amount(results: Results) -> None:
    grids = [short_grid(results), summary_grid(results), *facet_grids(results), *comparison_grids(results)]
    assert len(grids) > 6
    for grid in grids:
        at = next(i for i, column in enumerate(grid.columns) if column.title in ("Size", "Size ratio"))
        shown = {row[0].main: row[at].main for row in grid.rows}
        expected = {"full": "1.00", POLICIES: "2.50", THRESHOLD: "6.00*"}
        assert shown == {name: size for name, size in expected.items() if name in shown}
        (note,) = [note for note in grid.notes if note.startswith("*")]
        assert note.endswith(f"asked for. {THRESHOLD} at ratio 4: 6.00, not 4.00.")
        assert any("layers under full" in note for note in grid.notes)


def test_a_difference_of_two_percent_is_not_remarked_on() -> None:
    near, far = (record().model_copy(update={"extra": {"held_ratio": held}}) for held in (4.07, 4.09))
    assert not any(note.startswith("*") for note in summary_grid(summarise([near], {}, METRICS)).notes)
    # Said even where bytes were not measured.
    grid = summary_grid(summarise([far], {}, METRICS))
    assert any(note.startswith("*") for note in grid.notes)
    assert "–*" in [cell.main for cell in grid.rows[0]]


def test_every_format_says_so(report: Report) -> None:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(results_table(report.results, width=100))
    terminal, pipe = " ".join(capture.get().split()), "\n".join(plain_lines(report.results))
    for text in (terminal, pipe, html_page(report, [])):
        assert "6.00*" in text
        assert f"{THRESHOLD} at ratio 4: 6.00, not 4.00." in text
    assert "6.00\\*" in markdown_tables(report)
    assert "6.00{*}" in latex_tables(report)
    lines = metrics_csv(report.results).splitlines()
    assert any(line.startswith(f"{THRESHOLD},ratio=4,4.0,6.0,400.0,6.0,") for line in lines)
    row = next(row for row in Results.from_json(report.results.to_json()).rows if row.compose == POLICIES)
    assert (row.ratio, row.held_ratio, row.slots_per_head, row.size_ratio) == (4.0, 4.0, 400.0, 2.5)


@pytest.mark.parametrize(
    ("x", "title", "ticks"),
    [
        ("kv_mb", "KV MB", {"3.33", "8", "20"}),
        ("size_ratio", "Size ratio", {"1", "2.5", "6"}),
        ("ratio", "Ratio asked for", {"1", "4"}),
    ],
)
def test_scores_are_drawn_against_what_is_asked_for(results: Results, x: XAxis, title: str, ticks: set[str]) -> None:
    pareto = next(drawing for drawing in scatter_plots(results, x) if drawing.name == "pareto")
    for axes in pareto.figure.axes:
        if axes.get_xlabel():
            assert axes.get_xlabel() == title
            assert {label.get_text() for label in axes.get_xticklabels()} == ticks
