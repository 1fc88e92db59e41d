"""A run recorded before tasks other than the needle test: its report has the figures that were printed then."""

import json
from pathlib import Path

import pytest

from kvfw.analysis.results import Results, read_results
from kvfw.analysis.sources import Report, Source, make_report
from kvfw.core.contracts.records import TrialRecord
from kvfw.report.files import FORMS, report_files
from kvfw.report.html import html_page
from kvfw.report.terminal import plain_lines

FOLDER = Path(__file__).parents[1] / "data" / "run_schema_1"


@pytest.fixture(scope="module")
def old() -> Results:
    results = read_results(FOLDER / "results.json")
    assert results is not None
    return results


@pytest.fixture(scope="module")
def report(old: Results) -> Report:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    lines = (FOLDER / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    records = tuple(TrialRecord.model_validate_json(line) for line in lines)
    return make_report([Source("quick", config["settings"], config["facts"], records, old.metrics)])


def test_the_table_is_the_one_printed_then(report: Report) -> None:
    lines = plain_lines(report.results)
    assert lines[:3] == [
        "Compose                     Ratio  Size             Recall  Ref PPL  KV MB  Tok/s  Needle kept",
        "full                         1.00  1.00  100.0 % [57, 100]    1.355  45.00   15.3      100.0 %",
        "snapkv:0.8+ewmeans_pre:0.2   4.00  3.18    40.0 % [12, 77]    3.318  14.15   15.3       47.6 %",
    ]
    assert "# Tok/s without 4 of a row's trials: timed in the first trial of each length only." in lines
    assert "# snapkv:0.8+ewmeans_pre:0.2  ratio 4  −60.0 (+0 −3) cannot decide" in lines


def test_its_results_are_the_figures_written_then(old: Results, report: Report) -> None:
    for then, now in zip(old.rows, report.results.rows, strict=True):
        assert (then.compose, then.amount, then.n, then.ratio) == (now.compose, now.amount, now.n, now.ratio)
        assert then.by_facet == now.by_facet
        # The one metric that is derived from all records is computed where derived metrics are known.
        for name in now.metrics.keys() - {"hidden_cos_centred"}:
            for part in ("mean", "se", "ci95", "n", "groups", "missing"):
                assert getattr(then.metrics[name], part) == getattr(now.metrics[name], part), (name, part)
    p_values = [
        [(each.metric, each.difference, each.p) for each in of] for of in (old.comparisons, report.results.comparisons)
    ]
    assert set(p_values[1]) <= set(p_values[0])


def test_only_what_is_shown_is_explained(report: Report) -> None:
    """One group: there is no ± and no bootstrap interval."""
    page = html_page(report, [])
    assert "Wilson 95 % interval" in page
    for said in ("± standard error over", "bootstrap 95 % interval", "groups drawn", "Few groups"):
        assert said not in page, said


def test_all_its_files_can_be_written(report: Report) -> None:
    assert {name for name, data in report_files(report, FORMS) if data} >= {"report.html", "figures/heatmap.png"}
