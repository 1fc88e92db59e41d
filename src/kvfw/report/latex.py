"""``tables.tex``: booktabs tables. They need ``\\usepackage{booktabs}`` and nothing else."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvfw.analysis.results import RECALL, ResultRow, Results
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.grid import Cell, Grid, comparison_grids, depth_grid, metric_cell
from kvfw.report.source import Report
from kvfw.report.texts import MISSING, amount_text, break_compose, heading, number

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
COMPOSE_CHARACTERS: Final = 20
"""Longer compositions are broken between stages, and hard where a stage alone is longer."""
AMOUNT: Final = 1
"""The column that becomes the heading of a block of rows."""
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
        *_split(_intervals(results), 5),
        *comparison_grids(results, leading_only=True),
        *([depths] if depths else []),
    ]
    return HEADER + "".join(f"\n{table(grid)}" for grid in grids)


def table(grid: Grid) -> str:
    """One ``table*``, its caption above, rows in blocks of one amount each."""
    kept = [at for at in range(len(grid.heading)) if at != AMOUNT]
    columns = "".join("l" if at < grid.texts or grid.heading[at] == "Verdict" else "r" for at in kept)
    caption = " ".join([f"{grid.title}.", *grid.notes])
    lines = [
        r"\begin{table*}[tbp]",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:kvfw-{re.sub('[^a-z0-9-]', '-', grid.name.lower())}}}",
        r"\smallskip",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _line([_heading(grid.heading[at]) for at in kept]),
        r"\midrule",
    ]
    amount = ""
    for row in grid.rows:
        if row[AMOUNT].main != amount:
            lines += [r"\addlinespace"] if amount else []
            amount = row[AMOUNT].main
            lines.append(_line([rf"\multicolumn{{{len(kept)}}}{{@{{}}l@{{}}}}{{\emph{{{escape(amount)}}}}}"]))
        lines.append(_line([_cell(row[at], breakable=at < grid.composes) for at in kept]))
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


def _heading(title: str) -> str:
    """A title on two lines where it has two words."""
    first, space, rest = title.partition(" ")
    return _stacked([first, rest], "b", "l" if title == "Verdict" else "r") if space else escape(title)


def _cell(cell: Cell, *, breakable: bool) -> str:
    text = str(cell)
    if not breakable or len(text) <= COMPOSE_CHARACTERS:
        return escape(text)
    # Between stages first; a stage alone that is too long is cut anywhere.
    stages = break_compose(text, COMPOSE_CHARACTERS).split("\n")
    size = COMPOSE_CHARACTERS
    return _stacked([stage[at : at + size] for stage in stages for at in range(0, len(stage), size)], "t", "l")


def _stacked(lines: Sequence[str], anchor: str, column: str) -> str:
    broken = r" \\ ".join(map(escape, lines))
    return rf"\begin{{tabular}}[{anchor}]{{@{{}}{column}@{{}}}}{broken}\end{{tabular}}"


def _means(results: Results) -> Grid:
    """The summary as papers print it: recall and Ref PPL with their errors, means of the rest."""
    return _metric_grid(
        results,
        results.metrics,
        lambda row, info: _mean(row.metrics[info.name], info),
        name="summary",
        title="Results",
        notes=("± standard error over runs (context × seed).",),
    )


def _intervals(results: Results) -> Grid:
    """The intervals that the summary has no room for."""
    few = any(row.metrics[info.name].few_runs for row in results.rows for info in results.metrics)
    hits = ", ".join(info.title for info in results.metrics if info.proportion)
    return _metric_grid(
        results,
        results.metrics,
        lambda row, info: Cell(metric_cell(row.metrics[info.name], info).interval or MISSING),
        name="intervals",
        title="95 % intervals",
        notes=(
            *((f"{hits}: Wilson, trials taken as independent.",) if hits else ()),
            "The rest: bootstrap, seeds resampled within each context.",
            *(("Few runs (under 10): bootstrap intervals are rough.",) if few else ()),
        ),
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
