"""Tables as texts, Markdown and CSV."""

import csv
import io

import pytest

from helpers.founding_example import founding, source
from helpers.report_examples import HYBRID, METRICS, record
from kvfw.analysis.results import summarise
from kvfw.analysis.sources import Report, make_report
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.csv_files import comparisons_csv, metrics_csv
from kvfw.report.headline import headline
from kvfw.report.markdown import markdown_tables
from kvfw.report.tables import comparison_grids, facet_grids, missing_notes, summary_grid
from kvfw.report.texts import amount_text, difference_unit, heading, p_text


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report([source()], resamples=100)


def test_the_summary_has_every_metric_with_error_and_interval(report: Report) -> None:
    grid = summary_grid(report.results)
    assert len(grid.columns) == 3 + len(METRICS)
    full, snapkv = grid.rows[0], grid.rows[4]
    assert (full[0].main, full[1].main) == ("full", "ratio 1")
    assert (full[2].main, snapkv[2].main) == ("1.00", "3.54")
    assert full[3].main.startswith("91.1 ± ")
    assert full[3].below == "[79.3, 96.5]"
    assert snapkv[3].below == "[71.2, 92.3]"
    assert grid.notes[0].startswith(
        "n = 45 trials in every row. ± standard error over groups (prompts that share a text)."
    )
    assert any("Wilson" in note and "trials taken as independent" in note for note in grid.notes)
    assert any("Few groups" in note for note in grid.notes)


def test_hits_by_depth_are_the_published_ones(report: Report) -> None:
    context, grid, seed = facet_grids(report.results)
    assert (context.title, grid.title, seed.title) == ("Recall by context", "Recall by depth", "Recall by seed")
    assert [cell.main for cell in grid.rows[0]] == ["full", "ratio 1", "1.00", "6", "9", "8", "9", "9", "41/45"]
    assert grid.notes[0] == "Hits of 9 trials."
    assert grid.notes[1].startswith("Size ratio: how many times smaller the whole prompt's cache is")


def test_unequal_depths_show_their_n() -> None:
    results = summarise([record(), record(seed=1), record(depth=50.0), record("b")], {}, METRICS)
    _, grid = sorted(facet_grids(results), key=lambda grid: grid.name, reverse=True)
    assert [cell.main for cell in grid.rows[0]] == ["snapkv", "ratio 4", "2/2", "1/1", "3/3"]
    assert [cell.main for cell in grid.rows[1]] == ["b", "ratio 4", "1/1", "–", "1/1"]
    assert summary_grid(results).columns[2].title == "n"
    assert list(facet_grids(summarise([record(metrics={"x": 1.0})], {}, METRICS))) == []


def test_comparisons_lead_with_recall_and_ref_ppl(report: Report) -> None:
    titles = [grid.title for grid in comparison_grids(report.results)]
    assert titles[:4] == [
        "Recall against full",
        "Recall against uniform at the same amount",
        "Ref PPL against full",
        "Ref PPL against uniform at the same amount",
    ]
    grids = comparison_grids(report.results, leading_only=True)
    assert [grid.title for grid in grids] == titles[:4]
    snapkv = [str(cell) for cell in grids[0].rows[3]]
    assert snapkv[:6] == ["snapkv", "ratio 4", "3.54", "45", "0", "3"]
    assert snapkv[6].startswith("−6.7 [−")
    assert snapkv[-1] == "cannot decide"
    assert "trials taken as independent" in grids[0].notes[0]
    assert "Holm-adjusted over 16 tests" in grids[0].notes[0]
    assert "logarithm" in grids[2].notes[0]


@pytest.mark.parametrize(
    ("p", "text"), [(None, "–"), (0.0004, "<.001"), (0.001, ".001"), (0.0625, ".062"), (1.0, "1.000")]
)
def test_p_values_are_short(p: float | None, text: str) -> None:
    assert p_text(p) == text


def test_units_stand_where_the_title_lacks_them() -> None:
    assert [heading(info) for info in METRICS[:2]] == ["Recall, %", "Ref PPL"]
    assert heading(METRICS[5]) == "KV MB"
    assert heading(MetricInfo(name="t", title="Time", unit="s")) == "Time, s"
    assert difference_unit(METRICS[0], False) == "points"
    assert difference_unit(METRICS[1], True) == "nats/token"
    assert difference_unit(MetricInfo(name="t", title="Time", unit="s"), False) == "s"
    assert amount_text("slots=256") == "slots 256"


def test_reasons_of_nulls_are_said_once(report: Report) -> None:
    notes = missing_notes(report.results)
    assert len(notes) == len(set(notes))
    assert "Tok/s without 42 of a row's trials: timed in the first trial of each length only." in notes
    assert any(note.startswith("Tok/s has no [ , ]: resampling needs two groups") for note in notes)


def test_the_headline_says_what_was_run(report: Report) -> None:
    said = dict(headline(report))
    assert said["Model"] == "smollm2-135m"
    assert said["Mode"].startswith("question-aware")
    assert said["Task"] == "niah"
    assert said["Contexts"] == "1024, 2048, 3072"
    assert not {"Haystack", "Prompts sha256", "Compose"} & said.keys()
    assert said["Trials per row"] == "45"
    assert said["Hardware"] == "Some CPU, 2 cores"
    agnostic = make_report([source([record()], changed={"question_aware": False, "max_new_tokens": 24})], resamples=20)
    assert dict(headline(agnostic))["Mode"].startswith("question-agnostic")
    assert dict(headline(agnostic))["Max new tokens"] == "24"


def test_markdown_tables_are_whole(report: Report) -> None:
    text = markdown_tables(report)
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("|"):
            bars = {line.replace("\\|", "").count("|") for line in lines}
            assert len(bars) == 1
    assert "| snapkv:0.8+ewmeans\\_pre:0.2 | ratio 4 |" in text
    assert "## Recall by depth" in text


def test_hostile_names_cannot_break_out_of_markdown() -> None:
    text = markdown_tables(make_report([source([record("<b>|`x`")], "<i>")], resamples=20))
    assert "<b>" not in text
    assert "\\<b\\>\\|\\`x\\`" in text


def test_csv_has_one_line_per_row_and_metric(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(metrics_csv(report.results))))
    assert len(lines) == 17 * len(METRICS)
    assert " ".join(lines[0]) == (
        "compose amount ratio held_ratio slots_per_head size_ratio metric unit mean se lo hi interval n groups "
        "few_groups reason note"
    )
    recall = lines[0]
    assert (recall["compose"], recall["metric"], recall["unit"]) == ("full", "recall", "fraction")
    assert float(recall["mean"]) == pytest.approx(41 / 45)
    assert float(recall["lo"]) == pytest.approx(0.793, abs=1e-3)
    assert recall["n"] == "45"
    tok_s = next(line for line in lines if line["metric"] == "tok_s")
    assert (tok_s["lo"], tok_s["hi"]) == ("", "")
    assert "resampling needs two groups" in tok_s["reason"]
    compared = list(csv.DictReader(io.StringIO(comparisons_csv(report.results))))
    assert len(compared) == len(report.results.comparisons)
    assert " ".join(compared[0]) == (
        "metric compose amount reference_compose reference_amount test scale pairs groups difference lo hi only_row "
        "only_reference p p_holm family verdict few_groups reason"
    )
    assert float(compared[0]["difference"]) < 0


def test_csv_runs_no_formula_and_keeps_strange_names() -> None:
    results = summarise([record('=cmd("x"),\n'), record(HYBRID)], {}, METRICS)
    first, second = csv.DictReader(io.StringIO(metrics_csv(results)))
    assert first["compose"] == '\'=cmd("x"),\n'
    assert second["compose"] == HYBRID


def test_the_example_is_the_size_of_the_experiment() -> None:
    assert len(founding()) == 765
