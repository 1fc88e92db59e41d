"""The results as a table: for a terminal (rich) and for a pipe (aligned plain lines)."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kvfw.core.records import MetricInfo
from kvfw.report.results import Results
from kvfw.report.stats import Summary

Detail = Literal["mean", "se", "ci95"]

COLUMNS: Mapping[str, Detail] = {
    "recall": "ci95",
    "ref_ppl": "se",
    "kv_mb": "mean",
    "tok_s": "mean",
    "needle_retained": "mean",
}
"""Metrics shown, in order, and how far each goes: the mean, with standard error, with that and interval."""

MISSING = "–"
GAP = 2
MOST_REASONS = 8
NARROW = 90
"""Below this many columns an interval goes under its mean."""


class Cells(NamedTuple):
    """A table as text: heading and rows of equal length, and notes to stand below."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def results_table(results: Results, *, columns: Mapping[str, Detail] = COLUMNS, width: int = 100) -> Table:
    """The table for a terminal of ``width`` columns.

    Long compositions break between stages; no number ever breaks.
    """
    cells = results_cells(results, columns=columns, break_intervals=width < NARROW)
    room = width - sum(_column_width(cells, at) + GAP for at in range(1, len(cells.heading)))
    # The box itself puts one space between columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    for at, title in enumerate(cells.heading):
        # Cells are Text, not str: a bracketed interval would be read as markup.
        table.add_column(Text(title), justify="left" if at == 0 else "right", no_wrap=at > 0, overflow="fold")
    for compose, *others in cells.rows:
        table.add_row(Text(break_compose(compose, max(room, 8))), *(Text(other) for other in others))
    table.caption = Text("\n".join(cells.notes))
    table.caption_justify = "left"
    return table


def plain_lines(results: Results, *, columns: Mapping[str, Detail] = COLUMNS) -> list[str]:
    """The table for a pipe: one line per row however long, columns aligned by spaces, notes below."""
    cells = results_cells(results, columns=columns)
    widths = [_column_width(cells, at) for at in range(len(cells.heading))]
    lines = [_padded(row, widths) for row in (cells.heading, *cells.rows)]
    return [*lines, *(f"# {note}" for note in cells.notes)]


def results_cells(results: Results, *, columns: Mapping[str, Detail] = COLUMNS, break_intervals: bool = False) -> Cells:
    """The table's texts. A column whose metric no row has is left out, n is one only where it differs."""
    infos = {info.name: info for info in results.metrics}
    shown = [(infos[name], detail) for name, detail in columns.items() if name in infos]
    show_n = len({row.n for row in results.rows}) > 1
    heading = ("Compose", "Ratio", *(("n",) if show_n else ()), *(info.title for info, _ in shown))
    rows = tuple(
        (
            row.compose,
            MISSING if row.ratio is None else f"{row.ratio:.2f}",
            *((str(row.n),) if show_n else ()),
            *(_cell(row.metrics[info.name], info, detail, break_intervals) for info, detail in shown),
        )
        for row in results.rows
    )
    return Cells(heading, rows, _notes(results, shown, show_n))


def break_compose(compose: str, width: int) -> str:
    """A composition on as many lines as it needs, broken before a ``+`` where possible."""
    lines: list[str] = []
    for at, stage in enumerate(compose.split("+")):
        piece = stage if at == 0 else f"+{stage}"
        if lines and cell_len(lines[-1] + piece) <= width:
            lines[-1] += piece
        else:
            lines.append(piece)
    return "\n".join(lines)


def number(value: float, info: MetricInfo, digits: int | None = None) -> str:
    """A metric's value as shown, without its unit; percentages times 100."""
    scaled = value * 100 if info.unit == "%" else value
    return f"{scaled:.3g}" if abs(scaled) >= 1e6 else f"{scaled:.{info.digits if digits is None else digits}f}"


def _cell(summary: Summary, info: MetricInfo, detail: Detail, break_interval: bool) -> str:
    if summary.mean is None:
        return MISSING
    text = number(summary.mean, info)
    if detail != "mean" and summary.se is not None:
        text += f" ± {number(summary.se, info)}"
    if info.unit == "%":
        text += " %"
    if detail == "ci95" and summary.ci95 is not None:
        # Whole percents say enough of an interval that is ten wide.
        digits = 0 if info.unit == "%" else info.digits
        low, high = (number(end, info, digits) for end in summary.ci95)
        text += f"{chr(10) if break_interval else ' '}[{low}, {high}]"
    return text


def _notes(results: Results, shown: Sequence[tuple[MetricInfo, Detail]], show_n: bool) -> tuple[str, ...]:
    notes = []
    if results.rows and not show_n:
        notes.append(f"n = {results.rows[0].n} trials in every row.")
    if any(detail != "mean" for _, detail in shown):
        notes.append("± standard error over runs (context × seed).")
    if any(detail == "ci95" and info.proportion for info, detail in shown):
        notes.append("[ , ] Wilson 95 % interval, trials taken as independent.")
    if any(detail == "ci95" and not info.proportion for info, detail in shown):
        notes.append("[ , ] bootstrap 95 % interval, seeds resampled within each context.")
        if any(row.metrics[info.name].few_runs for row in results.rows for info, _ in shown):
            notes.append("Few runs: bootstrap intervals are rough.")
    merged = " ".join(notes)
    return (*((merged,) if merged else ()), *_reasons(results, shown))


def _reasons(results: Results, shown: Sequence[tuple[MetricInfo, Detail]]) -> tuple[str, ...]:
    """Why values are missing or rest on fewer trials than the row has, one line per metric and reason."""
    # A dict and not a set: notes stand in the order of rows and columns.
    lines = dict.fromkeys(f"Ratio {MISSING}: {row.reasons['ratio']}." for row in results.rows if row.reasons)
    for info, detail in shown:
        left_out: dict[str, int] = {}
        for row in results.rows:
            summary = row.metrics[info.name]
            for note in _absent(summary, detail):
                lines[f"{info.title} {note}."] = None
            if summary.mean is not None:
                for reason, count in summary.missing.items():
                    left_out[reason] = max(count, left_out.get(reason, 0))
        for reason, count in left_out.items():
            lines[f"{info.title} without {count} of a row's trials: {reason}."] = None
    shown_lines = list(lines)[:MOST_REASONS]
    if more := len(lines) - len(shown_lines):
        shown_lines.append(f"{more} more such notes are in the results file.")
    return tuple(shown_lines)


def _absent(summary: Summary, detail: Detail) -> list[str]:
    """For each part of a cell that is not there, why."""
    if summary.mean is None:
        # What kept the trials from having a value says more than that none has one.
        return [f"{MISSING}: {reason}" for reason in (summary.missing or [summary.reasons["mean"]])]
    parts = {"se": ("±", detail != "mean"), "ci95": ("[ , ]", detail == "ci95")}
    return [
        f"has no {sign}: {summary.reasons[name]}"
        for name, (sign, wanted) in parts.items()
        if wanted and name in summary.reasons
    ]


def _column_width(cells: Cells, at: int) -> int:
    return max(cell_len(line) for row in (cells.heading, *cells.rows) for line in row[at].split("\n"))


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    spaces = [" " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)]
    first, *others = zip(row, spaces, strict=True)
    return (" " * GAP).join(["".join(first), *(space + text for text, space in others)]).rstrip()
