"""CSV files for other programs: one line per value, numbers unrounded, percentages as fractions of 1."""

import csv
import io
from collections.abc import Sequence
from typing import Final

from kvfw.analysis.compare import Comparison
from kvfw.analysis.floor import MEANING, below_floor
from kvfw.analysis.results import ResultRow, Results
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.grid import Grid, Spec, grid_of

Fact = tuple[ResultRow, MetricInfo, Summary]
"""One metric of one row."""

METRICS: Final[Sequence[Spec[Fact]]] = (
    ("compose", "compose", lambda fact: fact[0].compose),
    ("amount", "amount", lambda fact: fact[0].amount),
    ("ratio", "number", lambda fact: fact[0].ratio),
    ("held_ratio", "number", lambda fact: fact[0].held_ratio),
    ("slots_per_head", "number", lambda fact: fact[0].slots_per_head),
    ("size_ratio", "number", lambda fact: fact[0].size_ratio),
    ("metric", "text", lambda fact: fact[1].name),
    ("unit", "text", lambda fact: "fraction" if fact[1].unit == "%" else fact[1].unit),
    ("mean", "number", lambda fact: fact[2].mean),
    ("se", "number", lambda fact: fact[2].se),
    ("lo", "number", lambda fact: fact[2].ci95 and fact[2].ci95[0]),
    ("hi", "number", lambda fact: fact[2].ci95 and fact[2].ci95[1]),
    ("interval", "text", lambda fact: fact[2].ci95_method),
    ("n", "number", lambda fact: fact[2].n),
    ("groups", "number", lambda fact: fact[2].groups),
    ("few_groups", "text", lambda fact: fact[2].few_groups),
    ("reason", "text", lambda fact: _joined([*fact[2].reasons.values(), *fact[2].missing])),
)
COMPARISONS: Final[Sequence[Spec[Comparison]]] = (
    ("metric", "text", lambda each: each.metric),
    ("compose", "compose", lambda each: each.row.compose),
    ("amount", "amount", lambda each: each.row.amount),
    ("reference_compose", "compose", lambda each: each.reference.compose),
    ("reference_amount", "amount", lambda each: each.reference.amount),
    ("test", "text", lambda each: each.test),
    ("scale", "text", lambda each: each.scale),
    ("pairs", "number", lambda each: each.pairs),
    ("groups", "number", lambda each: each.groups),
    ("difference", "number", lambda each: each.difference),
    ("lo", "number", lambda each: each.ci95 and each.ci95[0]),
    ("hi", "number", lambda each: each.ci95 and each.ci95[1]),
    ("only_row", "number", lambda each: each.gained),
    ("only_reference", "number", lambda each: each.lost),
    ("p", "number", lambda each: each.p),
    ("p_holm", "number", lambda each: each.p_holm),
    ("family", "number", lambda each: each.family),
    ("verdict", "text", lambda each: each.verdict),
    ("few_groups", "text", lambda each: each.few_groups),
    ("reason", "text", lambda each: _joined(list(each.reasons.values()))),
)


def metrics_csv(results: Results) -> str:
    """``tables.csv``: one line per row and metric; None is an empty field."""
    facts: list[Fact] = [(row, info, row.metrics[info.name]) for row in results.rows for info in results.metrics]
    low = below_floor(results)
    note: Spec[Fact] = ("note", "text", lambda fact: MEANING if fact[1].name in low else None)
    return csv_text(grid_of("metrics", "", facts, [*METRICS, note]))


def comparisons_csv(results: Results) -> str:
    """``comparisons.csv``: one line per comparison, the fields of :class:`~kvfw.analysis.compare.Comparison`."""
    return csv_text(grid_of("comparisons", "", results.comparisons, COMPARISONS))


def csv_text(grid: Grid) -> str:
    """The table as CSV with a header line. Text that a spreadsheet would run as a formula gets a leading quote."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.title for column in grid.columns)
    for row in grid.rows:
        cells = zip(row, grid.columns, strict=True)
        writer.writerow(str(cell) if column.kind == "number" else _inert(str(cell)) for cell, column in cells)
    return out.getvalue()


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "@", "-", "\t", "\r")) else text


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
