"""CSV files for other programs: one line per fact, numbers unrounded, nothing shown times 100."""

import csv
import io
from collections.abc import Iterable, Sequence

from kvfw.analysis.results import Results

METRIC_COLUMNS = (
    "compose",
    "amount",
    "ratio",
    "metric",
    "unit",
    "mean",
    "se",
    "lo",
    "hi",
    "interval",
    "n",
    "runs",
    "few_runs",
    "reason",
)
COMPARISON_COLUMNS = (
    "metric",
    "compose",
    "amount",
    "reference_compose",
    "reference_amount",
    "test",
    "scale",
    "pairs",
    "runs",
    "difference",
    "lo",
    "hi",
    "only_row",
    "only_reference",
    "p",
    "p_holm",
    "family",
    "verdict",
    "few_runs",
    "reason",
)


def metrics_csv(results: Results) -> str:
    """``tables.csv``: one line per row and metric; percentages are fractions of 1; null is an empty field."""
    return _csv(
        METRIC_COLUMNS,
        (
            (
                row.compose,
                row.amount,
                row.ratio,
                info.name,
                "fraction" if info.unit == "%" else info.unit,
                summary.mean,
                summary.se,
                *(summary.ci95 or (None, None)),
                summary.ci95_method,
                summary.n,
                summary.runs,
                summary.few_runs,
                _joined([*summary.reasons.values(), *summary.missing]),
            )
            for row in results.rows
            for info in results.metrics
            for summary in (row.metrics[info.name],)
        ),
    )


def comparisons_csv(results: Results) -> str:
    """``comparisons.csv``: one line per comparison, the fields of :class:`~kvfw.analysis.compare.Comparison`."""
    return _csv(
        COMPARISON_COLUMNS,
        (
            (
                each.metric,
                each.row.compose,
                each.row.amount,
                each.reference.compose,
                each.reference.amount,
                each.test,
                each.scale,
                each.pairs,
                each.runs,
                each.difference,
                *(each.ci95 or (None, None)),
                each.gained,
                each.lost,
                each.p,
                each.p_holm,
                each.family,
                each.verdict,
                each.few_runs,
                _joined(list(each.reasons.values())),
            )
            for each in results.comparisons
        ),
    )


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(_inert(value) if isinstance(value, str) else value for value in row)
    return out.getvalue()


def _inert(text: str) -> str:
    """Text that a spreadsheet would run as a formula gets a quote in front."""
    return f"'{text}" if text.startswith(("=", "+", "@", "\t", "\r")) or text[:1] == "-" else text


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
