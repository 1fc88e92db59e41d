"""``tables.tex``: booktabs tables. They need ``\\usepackage{booktabs}`` and nothing else."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvfw.core.records import MetricInfo
from kvfw.report.grid import Cell, Grid, amount_text, comparison_grids, depth_grid, heading, metric_cell
from kvfw.report.results import RECALL, ResultRow, Results
from kvfw.report.source import Report
from kvfw.report.stats import Summary
from kvfw.report.table import MISSING, break_compose, number

SPECIAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
        '"': "''{}",
        "'": r"'{}",
        "`": r"`{}",
        "*": r"{*}",
        "[": r"{[}",
        "]": r"{]}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": r"$-$",
        "–": r"\textendash{}",
        "…": r"\ldots{}",
        "“": r"``",
        "”": r"''",
    }
)
COMPOSE_CHARACTERS: Final = 34
"""Longer compositions are broken between stages, and hard where a stage alone is longer."""
WITH_INTERVAL: Final = frozenset({RECALL})
WITH_ERROR: Final = frozenset({RECALL, "ref_ppl"})
HEADER: Final = (
    "% Needs \\usepackage{booktabs} in the preamble; \\input this file, or copy a table from it.\n"
    "% The tables span both columns of a two-column page (table*).\n"
)


def latex_tables(report: Report) -> str:
    """Summary, intervals, comparisons of recall and Ref PPL, recall by depth."""
    results = report.results
    depths = depth_grid(results)
    grids = [
        *_split(_means(results), 10),
        *_split(_intervals(results), 6),
        *comparison_grids(results, leading_only=True),
        *([depths] if depths else []),
    ]
    return HEADER + "".join(f"\n{table(grid)}" for grid in grids)


def table(grid: Grid) -> str:
    """One ``table*`` with its caption above, as booktabs recommends."""
    columns = "l" * grid.texts + "".join("l" if title == "Verdict" else "r" for title in grid.heading[grid.texts :])
    caption = " ".join([f"{grid.title}.", *grid.notes])
    lines = [
        r"\begin{table*}[tbp]",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:kvfw-{re.sub('[^a-z0-9-]', '-', grid.name.lower())}}}",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _line([escape(title) for title in grid.heading]),
        r"\midrule",
    ]
    for at, row in enumerate(grid.rows):
        if at and row[1].main != grid.rows[at - 1][1].main:
            lines.append(r"\addlinespace")
        lines.append(_line([_cell(cell, breakable=column < grid.composes) for column, cell in enumerate(row)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def escape(text: str) -> str:
    """Text that LaTeX prints as itself; what its standard fonts lack is written as U+ and a number."""
    # Two hyphens would be drawn as one dash.
    return re.sub("-(?=-)", "-{}", "".join(map(_character, text)))


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isspace():
        return " "
    return character if " " <= character <= "~" else f"U+{ord(character):04X}"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell, *, breakable: bool) -> str:
    if not breakable or len(str(cell)) <= COMPOSE_CHARACTERS:
        return escape(str(cell))
    stages = break_compose(str(cell), COMPOSE_CHARACTERS).split("\n")
    pieces = [
        stage[at : at + COMPOSE_CHARACTERS] for stage in stages for at in range(0, len(stage), COMPOSE_CHARACTERS)
    ]
    broken = r" \\ ".join(map(escape, pieces))
    return rf"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{broken}\end{{tabular}}"


def _means(results: Results) -> Grid:
    """The summary as papers print it: recall with error and interval, Ref PPL with error, means of the rest."""
    return _metric_grid(
        results,
        results.metrics,
        lambda row, info: _mean(row.metrics[info.name], info),
        name="summary",
        title="Results",
        notes=(
            "± standard error over runs (context × seed). [ , ] Wilson 95 % interval, trials taken as independent.",
        ),
    )


def _intervals(results: Results) -> Grid:
    """The intervals that the summary has no room for."""
    few = any(row.metrics[info.name].few_runs for row in results.rows for info in results.metrics)
    return _metric_grid(
        results,
        [info for info in results.metrics if info.name not in WITH_INTERVAL],
        lambda row, info: Cell(metric_cell(row.metrics[info.name], info).interval or MISSING),
        name="intervals",
        title="95 % bootstrap intervals, seeds resampled within each context",
        notes=("Few runs (under 10): the intervals are rough.",) if few else (),
    )


def _metric_grid(
    results: Results,
    infos: Sequence[MetricInfo],
    cell: Callable[[ResultRow, MetricInfo], Cell],
    *,
    name: str,
    title: str,
    notes: tuple[str, ...],
) -> Grid:
    show_n = len({row.n for row in results.rows}) > 1
    if results.rows and not show_n:
        notes = (f"n = {results.rows[0].n} trials in every row.", *notes)
    return Grid(
        name,
        title,
        ("Composition", "Amount", *(("n",) if show_n else ()), *(heading(info) for info in infos)),
        tuple(
            (
                Cell(row.compose),
                Cell(amount_text(row.amount)),
                *((Cell(str(row.n)),) if show_n else ()),
                *(cell(row, info) for info in infos),
            )
            for row in results.rows
        ),
        texts=2,
        composes=1,
        notes=notes,
    )


def _mean(summary: Summary, info: MetricInfo) -> Cell:
    if summary.mean is None:
        return Cell(MISSING)
    if info.name in WITH_INTERVAL:
        return metric_cell(summary, info)
    return Cell(metric_cell(summary, info).main if info.name in WITH_ERROR else number(summary.mean, info))


def _split(grid: Grid, most: int) -> list[Grid]:
    """The grid as several with at most so many number columns each."""
    numbers = len(grid.heading) - grid.texts
    starts = range(grid.texts, max(len(grid.heading), grid.texts + 1), most)
    if numbers <= most:
        return [grid] if numbers else []
    return [
        grid._replace(
            name=f"{grid.name}-{part}",
            heading=(*grid.heading[: grid.texts], *grid.heading[start : start + most]),
            rows=tuple((*row[: grid.texts], *row[start : start + most]) for row in grid.rows),
        )
        for part, start in enumerate(starts, start=1)
    ]
