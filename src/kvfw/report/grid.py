"""A table of texts, which each output format renders in its own way."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

Kind = Literal["compose", "amount", "text", "number", "verdict", "response"]
"""The content of a column: compositions may break between parts, equal amounts form a block, numbers align right."""
T = TypeVar("T")


class Cell(NamedTuple):
    """A value, with an interval or verdict beside or below it."""

    main: str
    below: str = ""

    def __str__(self) -> str:
        return f"{self.main} {self.below}" if self.below else self.main


class Column(NamedTuple):
    """Title and kind of a column."""

    title: str
    kind: Kind = "number"

    @property
    def right(self) -> bool:
        """Whether its cells are right-aligned."""
        return self.kind == "number"


class Grid(NamedTuple):
    """A table.

    Attributes:
        name: short and unique, for labels and anchors.
        title: what it shows.
        columns: from left to right.
        rows: one cell per column.
        notes: printed below the table.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def block(self) -> int | None:
        """The column whose equal neighbouring cells form a block of rows, if any."""
        return next((at for at, column in enumerate(self.columns) if column.kind == "amount"), None)

    def begins_block(self, at: int) -> bool:
        """Whether that row starts a new block."""
        return self.block is not None and at > 0 and self.rows[at][self.block] != self.rows[at - 1][self.block]

    def of_columns(self, kept: Sequence[int]) -> "Grid":
        """The same table with these columns only."""
        return self._replace(
            columns=tuple(self.columns[at] for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in self.rows),
        )


Spec = tuple[str, Kind, Callable[[T], Cell | str | float | bool | None]]
"""A column: title, kind, and a function from an item to the cell's content."""


def grid_of(name: str, title: str, items: Iterable[T], specs: Sequence[Spec[T]], notes: Sequence[str] = ()) -> Grid:
    """A table with one row per item; numbers are written in full, None is an empty cell."""

    def cell(value: Cell | str | float | bool | None) -> Cell:
        return value if isinstance(value, Cell) else Cell("" if value is None else str(value))

    rows = tuple(tuple(cell(content(item)) for _, _, content in specs) for item in items)
    return Grid(name, title, tuple(Column(heading, kind) for heading, kind, _ in specs), rows, tuple(notes))
