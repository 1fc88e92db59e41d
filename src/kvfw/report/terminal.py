"""Tables for a terminal (rich) and for a pipe (aligned plain lines)."""

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvfw.analysis.results import Results
from kvfw.report.grid import Cell, Grid
from kvfw.report.tables import short_comparison, short_grid
from kvfw.report.texts import break_compose, stages

GAP = 2
NARROW = 90
"""On terminals narrower than this, an interval goes below its mean."""
WIDE_TITLE, NARROW_TITLE = 26, 16
"""Columns after which a reference's name breaks."""


def results_table(results: Results, *, width: int = 100) -> Group:
    """The output for a terminal of ``width`` columns: the rows, their primary score against the references, notes.

    Long compositions break between stages, numbers never.
    """
    grid = short_grid(results)
    parts: list[Table | Text] = [rich_table(grid, width, stacked=width < NARROW)]
    notes = [*grid.notes]
    references = len({each.reference.compose for each in results.comparisons})
    for most, stacked in ((most, stacked) for most in range(references, 0, -1) for stacked in (False, True)):
        against = short_comparison(results, most)
        if against and (_least_width(against, stacked) <= width or (most == 1 and stacked)):
            parts += [Text(), rich_table(against, width, stacked=stacked)]
            notes += against.notes
            break
    return Group(*parts, Text("\n".join(notes), style="italic"))


def plain_lines(results: Results) -> list[str]:
    """The table for a pipe: one line per row, columns aligned by spaces; all other lines begin with ``#``."""
    grid, against = short_grid(results), short_comparison(results)
    below = [*aligned(against), *against.notes] if against else []
    return [*aligned(grid), *(f"# {note}" for note in (*grid.notes, *below))]


def rich_table(grid: Grid, width: int, *, stacked: bool = False) -> Table:
    """The table, below its title if any, for a terminal of ``width`` columns, without notes.

    ``stacked`` puts a cell's second part below the first, not beside it.
    """
    room = width - sum(each + GAP for each in _widths(grid, stacked)[1:])
    # The box itself puts one space between columns.
    table = Table(
        title=Text(grid.title) if grid.title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
        show_edge=False,
    )
    for at, column in enumerate(grid.columns):
        # Cells are Text, not str: a bracketed interval would be read as markup.
        title, no_wrap = Text(_title(grid, at, stacked)), at > 0 and column.kind != "response"
        table.add_column(title, justify="right" if column.right else "left", no_wrap=no_wrap, overflow="fold")
    for row in grid.rows:
        texts = [_text(cell, stacked) for cell in row]
        if grid.columns[0].kind == "compose":
            texts[0] = break_compose(texts[0], max(room, 8))
        table.add_row(*map(Text, texts))
    return table


def aligned(grid: Grid) -> list[str]:
    """Headings and rows as lines, columns aligned by spaces."""
    texts = [[column.title for column in grid.columns], *([str(cell) for cell in row] for row in grid.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]

    def padded(text: str, at: int) -> str:
        space = " " * (widths[at] - cell_len(text))
        return space + text if grid.columns[at].right else text + space

    return [(" " * GAP).join(padded(text, at) for at, text in enumerate(row)).rstrip() for row in texts]


def _title(grid: Grid, at: int, stacked: bool) -> str:
    """A column's title; that of numbers narrower than it is on two lines, if it has two words."""
    title = grid.columns[at].title
    if grid.columns[at].right and all(cell_len(_text(row[at], stacked)) < cell_len(title) for row in grid.rows):
        return title.replace(" ", "\n", 1)
    return break_compose(title, NARROW_TITLE if stacked else WIDE_TITLE)


def _text(cell: Cell, stacked: bool) -> str:
    return f"{cell.main}\n{cell.below}" if cell.below and stacked else str(cell)


def _widths(grid: Grid, stacked: bool) -> list[int]:
    """Width of each column of the table in terminal columns, with no unnecessary breaks."""
    texts = [
        [_title(grid, at, stacked), *(_text(row[at], stacked) for row in grid.rows)] for at in range(len(grid.columns))
    ]
    return [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]


def _least_width(grid: Grid, stacked: bool) -> int:
    """Terminal columns the table needs if compositions break between stages."""
    parts = [part for row in grid.rows for part in stages(row[0].main)]
    first = max(map(cell_len, [*parts, grid.columns[0].title]))
    return first + sum(each + GAP for each in _widths(grid, stacked)[1:])
