"""The results as a table: for a terminal (rich) and for a pipe (aligned plain lines)."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvfw.analysis.compare import Comparison
from kvfw.analysis.results import RECALL, Results
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.texts import MISSING, amount_text, break_compose, number, p_text, signed

Detail = Literal["mean", "se", "ci95"]

COLUMNS: Mapping[str, Detail] = {
    "recall": "ci95",
    "ref_ppl": "se",
    "kv_mb": "mean",
    "tok_s": "mean",
    "needle_retained": "mean",
}
"""Metrics shown, in order, and how far each goes: the mean, with standard error, with that and interval."""

GAP = 2
MOST_REASONS = 8
NARROW = 90
"""Below this many columns an interval goes under its mean."""


class Cells(NamedTuple):
    """A table as text: heading and rows of equal length, and notes to stand below."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def results_table(results: Results, *, columns: Mapping[str, Detail] = COLUMNS, width: int = 100) -> Group:
    """What a terminal of ``width`` columns shows: the rows, their recall against the references, notes.

    Long compositions break between stages; no number ever breaks.
    """
    cells = results_cells(results, columns=columns, break_intervals=width < NARROW)
    against = _fitting_comparisons(results, width)
    notes = (*cells.notes, *(against.notes if against else ()))
    parts = [_table(cells, width), *((Text(), _table(against, width)) if against else ())]
    return Group(*parts, Text("\n".join(notes), style="italic"))


def plain_lines(results: Results, *, columns: Mapping[str, Detail] = COLUMNS) -> list[str]:
    """The table for a pipe: one line per row however long, columns aligned by spaces; all else begins with ``#``."""
    cells = results_cells(results, columns=columns)
    against = comparison_cells(results)
    below = [*_aligned(against), *against.notes] if against else []
    return [*_aligned(cells), *(f"# {note}" for note in (*cells.notes, *below))]


def comparison_cells(
    results: Results, *, break_verdicts: bool = False, title_width: int = 10**6, most: int = 10**6
) -> Cells | None:
    """Recall of every row against the references; None where nothing is compared.

    Args:
        results: with their comparisons.
        break_verdicts: put the p value or verdict below the difference.
        title_width: columns after which the name of a reference breaks.
        most: references shown, the first ones.
    """
    info = next((info for info in results.metrics if info.name == RECALL), None)
    found = {
        (each.row.compose, each.row.amount, each.reference.compose): each
        for each in results.comparisons
        if each.metric == RECALL
    }
    if info is None or not found:
        return None
    every = list(dict.fromkeys(reference for _, _, reference in found))
    references = every[:most]
    left_out = len(every) - len(references)
    rows = list(dict.fromkeys((compose, amount) for compose, amount, _ in found))
    return Cells(
        (
            f"{info.title}, difference",
            "Amount",
            *(break_compose(f"vs {reference}", title_width) for reference in references),
        ),
        tuple(
            (
                compose,
                amount_text(amount),
                *(_against(found.get((compose, amount, reference)), info, break_verdicts) for reference in references),
            )
            for compose, amount in rows
        ),
        (
            "+ − prompts that only the row, only the reference answers; exact McNemar, Holm-adjusted per column, "
            "trials taken as independent. Fewer than 6 such prompts cannot decide.",
            *((f"{left_out} more references are in the results file.",) if left_out else ()),
        ),
    )


def _fitting_comparisons(results: Results, width: int) -> Cells | None:
    """The comparisons with as many references, on as few lines, as the terminal has room for."""
    references = len({each.reference.compose for each in results.comparisons})
    for most in range(references, 0, -1):
        for broken in (False, True):
            cells = comparison_cells(results, break_verdicts=broken, title_width=16 if broken else 26, most=most)
            if cells is None or _least_width(cells) <= width or (most == 1 and broken):
                return cells
    return None


def _least_width(cells: Cells) -> int:
    """Columns the table needs where compositions break between stages."""
    stages = max(cell_len(f"+{stage}") for row in cells.rows for stage in row[0].split("+"))
    first = max(stages, cell_len(cells.heading[0]))
    return first + sum(_column_width(cells, at) + GAP for at in range(1, len(cells.heading)))


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


def _against(each: Comparison | None, info: MetricInfo, break_verdict: bool) -> str:
    """``−6.7 (+0 −3) cannot decide``, ``−91.1 (+0 −41) p<.001``."""
    if each is None or each.difference is None:
        return MISSING
    text = signed(each.difference, info, each)
    if each.gained is not None and each.lost is not None:
        text += f" (+{each.gained} −{each.lost})"
    p = p_text(each.p_holm)
    verdict = each.verdict if each.verdict == "cannot decide" else f"p{p}" if p.startswith("<") else f"p={p}"
    return f"{text}{chr(10) if break_verdict else ' '}{verdict}"


def _table(cells: Cells, width: int) -> Table:
    room = width - sum(_column_width(cells, at) + GAP for at in range(1, len(cells.heading)))
    # The box itself puts one space between columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    for at, title in enumerate(cells.heading):
        # Cells are Text, not str: a bracketed interval would be read as markup.
        table.add_column(Text(title), justify="left" if at == 0 else "right", no_wrap=at > 0, overflow="fold")
    for compose, *others in cells.rows:
        table.add_row(Text(break_compose(compose, max(room, 8))), *(Text(other) for other in others))
    return table


def _aligned(cells: Cells) -> list[str]:
    widths = [_column_width(cells, at) for at in range(len(cells.heading))]
    return [_padded(row, widths) for row in (cells.heading, *cells.rows)]


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
