"""The table as people see it: at several widths and in a pipe."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from helpers.report_examples import HYBRID, METRICS, experiment, record
from kvfw.analysis.results import Results, summarise
from kvfw.report.grid import Cell, Column, Grid
from kvfw.report.tables import short_comparison, short_grid
from kvfw.report.terminal import plain_lines, results_table, rich_table
from kvfw.report.texts import break_compose


def rendered(results: Results, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(results_table(results, width=width))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.fixture(scope="module")
def five_rows() -> Results:
    return summarise(experiment(), {}, METRICS, resamples=200)


def test_five_rows_fit_a_hundred_columns_on_a_line_each(five_rows: Results) -> None:
    lines = rendered(five_rows, 100)
    assert lines[:8] == [
        " " * 93 + "Span",
        "Compose                     Ratio  Size                 Recall        Ref PPL  KV MB  Tok/s  kept",
        "─" * 97,
        "full                         1.00  1.00  91.1 ± 3.5 % [79, 96]  1.180 ± 0.009  40.96   17.0     –",
        "snapkv                       4.00  4.00  84.4 ± 2.9 % [71, 92]  1.420 ± 0.034  10.24   20.0  37 %",
        f"{HYBRID}   4.00  4.00  80.0 ± 4.7 % [66, 89]  1.420 ± 0.034  10.24   20.0  37 %",
        "snapkv                       8.00  8.00  46.7 ± 4.7 % [33, 61]  1.740 ± 0.069   5.12   24.0  37 %",
        "uniform                      8.00  8.00     0.0 ± 0.0 % [0, 8]  1.740 ± 0.069   5.12   24.0  37 %",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_nothing_is_wider_than_the_terminal(five_rows: Results, width: int) -> None:
    assert max(cell_len(line) for line in rendered(five_rows, width)) <= width


def test_at_eighty_columns_intervals_go_below_and_compositions_break_between_stages(
    five_rows: Results,
) -> None:
    lines = rendered(five_rows, 80)
    assert lines[7].startswith("snapkv:0.8         4.00  4.00  80.0 ± 4.7 %  1.420 ± 0.034")
    assert lines[8].split() == ["+ewmeans_pre:0.2", "[66,", "89]"]


def test_a_pipe_gets_one_line_per_row_and_notes_that_start_with_a_hash(five_rows: Results) -> None:
    lines = plain_lines(five_rows)
    rows, notes = lines[:6], lines[6:]
    assert rows[3].split("  ")[0] == HYBRID
    assert len({cell_len(row) for row in rows}) == 1
    assert notes[:4] == [
        "# n = 45 trials in every row. ± standard error over groups (prompts that share a text). "
        "[ , ] Wilson 95 % interval, trials taken as independent.",
        "# Size: how many times smaller the whole prompt's cache is than that of full.",
        "# Tok/s without 42 of a row's trials: timed in the first trial of each length only.",
        "# Span kept –: nothing was compressed.",
    ]


def test_recall_stands_against_the_references(five_rows: Results) -> None:
    lines = rendered(five_rows, 100)
    at = next(at for at, line in enumerate(lines) if line.startswith("Recall, difference"))
    assert [" ".join(line.split()) for line in lines[at : at + 4]] == [
        "Recall, difference Amount vs full vs snapkv",
        "─" * len(lines[at + 1]),
        "snapkv ratio 4 −6.7 (+0 −3) cannot decide –",
        f"{HYBRID} ratio 4 −11.1 (+0 −5) cannot decide −4.4 (+0 −2) cannot decide",
    ]
    assert plain_lines(five_rows)[-1].startswith("# + − prompts that only the row")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_many_references_of_long_names_do_not_break_the_terminal(width: int) -> None:
    names = [f"method{at}(option=value,other=value):0.5+ewmeans_pre(iterations=20):0.5" for at in range(6)]
    trials = [record(name, seed=seed) for name in names for seed in range(3)]
    rows = [trial.key.row for trial in trials]
    results = summarise(trials, {}, METRICS, references=list(dict.fromkeys(rows)), resamples=20)
    lines = rendered(results, width)
    assert max(cell_len(line) for line in lines) <= width
    assert any("more references are in the results file" in line for line in lines)


def test_nothing_to_compare_leaves_the_comparison_out() -> None:
    assert short_comparison(summarise([record()], {}, METRICS)) is None


def test_unfinished_rows_show_their_n_and_what_they_lack() -> None:
    trials = [record("full", "ratio=1", ratio=1.0), record(seed=0), record(seed=1, ratio=None)]
    cells = short_grid(summarise(trials, {}, METRICS))
    assert [column.title for column in cells.columns] == ["Compose", "Ratio", "n", "Recall"]
    assert [[str(cell) for cell in row] for row in cells.rows] == [
        ["full", "1.00", "1", "100.0 % [21, 100]"],
        ["snapkv", "4.00", "2", "100.0 ± 0.0 % [34, 100]"],
    ]
    assert cells.notes[1:] == ("Recall has no ±: a standard error needs two groups or more, there is 1.",)


def test_notes_are_said_once_and_bounded() -> None:
    trials = [
        record(
            "full",
            seed=seed,
            ratio=None,
            metrics={"ref_ppl": None},
            reasons={"ref_ppl": f"reason {seed // 2}"},
        )
        for seed in range(40)
    ]
    notes = short_grid(summarise(trials, {}, METRICS)).notes
    assert notes[1] == "Ratio –: no trial has a value."
    assert notes[2] == "Ref PPL –: reason 0."
    assert notes[-1] == "13 more such notes are in the results file."
    assert len(notes) == len(set(notes)) == 10


def test_a_bootstrap_interval_of_few_groups_is_marked() -> None:
    trials = [record(seed=seed, metrics={"ref_ppl": 1.0 + seed}) for seed in range(3)]
    cells = short_grid(summarise(trials, {}, METRICS), columns={"ref_ppl": "ci95"})
    assert str(cells.rows[0][2]) == "2.000 ± 0.577 [1.000, 3.000]"
    assert "Few groups (under 10): bootstrap intervals are rough." in cells.notes[0]


def test_a_table_without_rows_is_a_heading() -> None:
    assert plain_lines(summarise([], {}, METRICS)) == ["Compose  Ratio"]
    assert rendered(summarise([], {}, METRICS), 80)[0] == "Compose  Ratio"


@pytest.mark.parametrize(
    ("width", "broken"),
    [(26, HYBRID), (20, "snapkv:0.8\n+ewmeans_pre:0.2"), (3, "snapkv:0.8\n+ewmeans_pre:0.2")],
)
def test_compositions_break_before_a_plus(width: int, broken: str) -> None:
    assert break_compose(HYBRID, width) == broken


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    results = summarise([record("[bold]x[/bold]"), record("full", "ratio=1")], {}, METRICS)
    assert any("[bold]x[/bold]" in line for line in rendered(results, 100))


def test_responses_side_by_side_wrap_between_words_and_are_whole() -> None:
    said = "The code is K3+Q9 | [a, b] > and then it goes on for a while"
    grid = Grid("answers", "", (Column("full", "response"), Column(HYBRID, "response")), ((Cell(said), Cell(said)),))
    console = Console(width=60, file=io.StringIO())
    with console.capture() as capture:
        console.print(rich_table(grid, 60))
    lines = capture.get().splitlines()
    assert max(map(cell_len, lines)) <= 60
    second = lines[0].index(HYBRID)
    assert " ".join(line[:second].strip() for line in lines[2:]) == said
    assert " ".join(line[second:].strip() for line in lines[2:]) == said
