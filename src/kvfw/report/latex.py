"""``tables.tex``: tables that need ``\\usepackage{booktabs}`` and nothing else."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvfw.analysis.sources import Report
from kvfw.report.grid import Cell, Column, Grid
from kvfw.report.tables import comparison_grids, facet_grids, leading, summary_grid
from kvfw.report.texts import broken

SPECIAL: Final[Mapping[str, str]] = MappingProxyType(
    {character: rf"\{character}" for character in "{}$&#%_"}
    | {character: f"${character}$" for character in "<>|"}
    | {character: f"{{{character}}}" for character in "*[]"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {'"': "''{}", "'": r"'{}", "`": r"`{}", "“": r"``", "”": r"''"}
    | {"±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "–": r"\textendash{}", "…": r"\ldots{}", "‡": r"\ddag{}"}
)
COMPOSE_CHARACTERS: Final = 20
"""Longer compositions break between stages and options, and anywhere if a single word is longer."""
MOST_NUMBERS: Final = 10
MOST_INTERVALS: Final = 5
HEADER: Final = (
    "% Needs \\usepackage{booktabs} in the preamble; \\input this file, or copy a table from it.\n"
    "% The tables span both columns of a two-column page (table*).\n"
)


def latex_tables(report: Report) -> str:
    """Summary in the style of papers, intervals, leading comparisons, the primary score by facets."""
    results = report.results
    errors = set(leading(results))
    means = summary_grid(results, lambda info: "se" if info.name in errors else "mean", title="Results")
    intervals = summary_grid(results, lambda info: "interval", name="intervals", title="95 % intervals")
    grids = [
        *_split(means, MOST_NUMBERS),
        *_split(intervals, MOST_INTERVALS),
        *comparison_grids(results, leading_only=True),
        *(part for grid in facet_grids(results) for part in _split(grid, MOST_NUMBERS)),
    ]
    return HEADER + "".join(f"\n{table(grid)}" for grid in grids)


def table(grid: Grid) -> str:
    """One ``table*`` with its caption above and rows in blocks of one amount."""
    block = grid.block
    inside = grid.of_columns([at for at in range(len(grid.columns)) if at != block])
    columns = "".join("r" if column.right else "l" for column in inside.columns)
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
        _line(map(_heading, inside.columns)),
        r"\midrule",
    ]
    for at, row in enumerate(inside.rows):
        if grid.begins_block(at):
            lines.append(r"\addlinespace")
        if block is not None and (at == 0 or grid.begins_block(at)):
            amount = escape(grid.rows[at][block].main)
            lines.append(_line([rf"\multicolumn{{{len(columns)}}}{{@{{}}l@{{}}}}{{\emph{{{amount}}}}}"]))
        lines.append(_line(map(_cell, row, inside.columns)))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def escape(text: str) -> str:
    """Text that LaTeX prints literally; characters missing in its standard fonts become U+ and a number."""
    # Two hyphens would print as one dash.
    return re.sub("-(?=-)", "-{}", "".join(map(_character, text)))


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isspace():
        return " "
    return character if " " <= character <= "~" else f"U+{ord(character):04X}"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _heading(column: Column) -> str:
    """A title, on two lines if it has two words or more."""
    first, space, rest = column.title.partition(" ")
    return _stacked([first, rest], "b", "r" if column.right else "l") if space else escape(column.title)


def _cell(cell: Cell, column: Column) -> str:
    text, size = str(cell), COMPOSE_CHARACTERS
    if column.kind != "compose" or len(text) <= size:
        return escape(text)
    lines = broken(text, lambda line: len(line) <= size)
    return _stacked([line[at : at + size] for line in lines for at in range(0, len(line), size)], "t", "l")


def _stacked(lines: Sequence[str], anchor: str, column: str) -> str:
    stack = r" \\ ".join(map(escape, lines))
    return rf"\begin{{tabular}}[{anchor}]{{@{{}}{column}@{{}}}}{stack}\end{{tabular}}"


def _split(grid: Grid, most: int) -> list[Grid]:
    """The grid split into grids of at most ``most`` number columns; none if it has no numbers."""
    texts = [at for at, column in enumerate(grid.columns) if not column.right]
    numbers = [at for at, column in enumerate(grid.columns) if column.right]
    parts = [numbers[at : at + most] for at in range(0, len(numbers), most)]
    names = [grid.name] if len(parts) == 1 else [f"{grid.name}-{part}" for part in range(1, len(parts) + 1)]
    return [grid.of_columns([*texts, *part])._replace(name=name) for name, part in zip(names, parts, strict=True)]
