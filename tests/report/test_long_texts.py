"""A composition with every sign that a text may hold, in every format."""

import csv
import io
from dataclasses import replace

import pytest

from helpers.founding_example import source
from helpers.report_examples import METRICS, experiment
from kvfw.analysis.results import Results, summarise
from kvfw.analysis.sources import Report, make_report
from kvfw.report.canvas import width_of, wrapped
from kvfw.report.csv_files import metrics_csv
from kvfw.report.files import FORMS, report_files
from kvfw.report.html import words
from kvfw.report.latex import escape, latex_tables
from kvfw.report.markdown import escape as escape_markdown
from kvfw.report.markdown import markdown_tables
from kvfw.report.tables import short_grid
from kvfw.report.terminal import plain_lines, rich_table
from kvfw.report.texts import break_compose, broken

LONG = (
    "gemfilter(layer=10,keep=0.25)>[0-3]snapkv(window=32,kernel=13,pooling=max)@adakv(floor=0.2):0.5+ewmeans_pre:0.5"
    "|refit(over=all);[4-]quest(page=16)~kivi(bits=4)"
)
WHOLE = ("kernel=13,", "pooling=max)@adakv(", "ewmeans_pre:0.5", "quest(", "bits=4)", "keep=0.25)>")


@pytest.fixture(scope="module")
def report() -> Report:
    rows = (("full", "ratio=1", 1.0, 41), (LONG, "ratio=4", 4.0, 20), ("@x", "ratio=4", 4.0, 3))
    return make_report([source(experiment(rows))], resamples=20)


@pytest.mark.parametrize("width", [10, 20, 40, 200])
def test_lines_end_between_parts_and_options_only(width: int) -> None:
    lines = broken(LONG, lambda line: len(line) <= width)
    assert "".join(lines) == LONG
    for line in lines[:-1]:
        following = LONG["".join(lines).index(line) + len(line) :][:1]
        assert line[-1] in "(,>;" or following in "+|", line
    for word in WHOLE:
        assert any(word in line for line in lines), word
    assert break_compose(LONG, width).split("\n") == lines


def test_a_stage_that_fits_a_line_is_not_broken() -> None:
    assert broken("snapkv(window=32,kernel=13)+a(b=1)+c", lambda line: len(line) <= 28) == [
        "snapkv(window=32,kernel=13)",
        "+a(b=1)+c",
    ]


def test_a_browser_may_break_where_lines_may_end() -> None:
    found = words(LONG)
    assert "".join(word for word, _ in found) == LONG
    assert all(whole for _, whole in found)
    assert {word for word, _ in found} >= {"kernel=13,", "snapkv(window=32,"[7:], "+ewmeans_pre:0.5"}
    assert words("y" * 90) == [("y" * 90, False)]


def test_a_figure_breaks_it_between_parts() -> None:
    lines = wrapped(LONG, 1.5, 20).split("\n")
    assert "".join(lines) == LONG
    assert max(map(width_of, lines)) <= 1.5
    assert all(any(word in line for line in lines) for word in WHOLE)


def test_every_text_format_shows_it_as_it_is(report: Report) -> None:
    results: Results = report.results
    assert plain_lines(results)[2].startswith(LONG + "  ")
    assert rich_table(short_grid(results), 100).row_count == 3
    rows = list(csv.DictReader(io.StringIO(metrics_csv(results))))
    assert {row["compose"] for row in rows} == {"full", LONG, "'@x"}
    assert f"| {escape_markdown(LONG)} | ratio 4 |" in markdown_tables(report)
    assert "\\[0-3\\]snapkv" in markdown_tables(report)
    assert "\\|refit" in markdown_tables(report)


def test_latex_breaks_it_between_parts_and_escapes_its_signs(report: Report) -> None:
    text = latex_tables(report)
    for word in WHOLE:
        assert escape(word) in text, word
    assert r"\textasciitilde{}kivi(" in text
    assert r"{[}0-3{]}snapkv(" in text
    assert "$|$refit(" in text


def test_files_are_not_named_after_it(report: Report) -> None:
    for name, data in report_files(report, FORMS):
        assert name.isascii()
        assert name.replace("figures/", "").replace("-", "").replace(".", "").isalnum(), name
        assert data


def test_a_score_that_is_no_share_of_hits_has_tables_and_a_map() -> None:
    """Another task: words as facets, no stratum, a score without a unit."""
    trials = [
        trial.model_copy(
            update={
                "facets": {"kind": "who" if at % 2 else "what"},
                "group": str(at % 15),
                "metrics": {"loss": at / 7.0},
            }
        )
        for at, trial in enumerate(experiment())
    ]
    info = METRICS[0].model_copy(update={"name": "loss", "title": "Loss", "unit": "", "proportion": False})
    report = make_report([replace(source(trials), metrics=(info,))], resamples=20)
    names = [name for name, _ in report_files(report, FORMS)]
    assert "figures/heatmap.png" in names
    text = markdown_tables(report)
    assert "## Loss by kind" in text
    assert "| Composition | Amount | what | who | all |" in text
    assert "recall" not in text.lower()
    assert summarise(trials, {}, [info]).comparisons[0].test == "bootstrap"
