"""Tables and samples in Markdown. All text is escaped, so it cannot break out of its cell."""

import re
from collections.abc import Iterable, Sequence

from kvfw.analysis.names import visible
from kvfw.analysis.results import primary_of
from kvfw.analysis.samples import samples
from kvfw.analysis.sources import Report
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.report.grid import Cell, Column, Grid
from kvfw.report.headline import headline
from kvfw.report.tables import comparison_grids, facet_grids, missing_notes, sample_grid, summary_grid

MARKED = re.compile(r"[\\`*_\[\]<>|~&#$]")
"""Characters with a meaning in Markdown, its tables or embedded HTML."""


def markdown_tables(report: Report) -> str:
    """``tables.md``: headline, summary, leading comparisons, the primary score by facets, notes."""
    results = report.results
    lines = ["# Results", "", *(f"- {escape(name)}: {escape(text)}" for name, text in headline(report)), ""]
    for grid in (summary_grid(results), *comparison_grids(results, leading_only=True), *facet_grids(results)):
        lines += [f"## {escape(grid.title)}", "", *grid_lines(grid), "", *(escape(note) + "\n" for note in grid.notes)]
        lines.append("")
    if notes := (*report.notes, *missing_notes(results)):
        lines += ["## Notes", "", *(f"- {escape(note)}" for note in notes), ""]
    return "\n".join(lines)


def samples_markdown(
    records: Iterable[TrialRecord],
    metrics: Sequence[MetricInfo],
    *,
    order: Sequence[RowKey] = (),
    max_prompts: int = 15,
    max_chars: int = 400,
) -> str:
    """``samples.md``: every composition's response to the same prompt, one table per prompt.

    Args:
        records, order, max_prompts: as for :func:`~kvfw.analysis.samples.samples`.
        metrics: in table order; the primary score is shown with every response.
        max_chars: longer responses are cut.
    """
    lines = ["# Samples", ""]
    for sample in samples(records, order=order, max_prompts=max_prompts):
        lines += [f"## {escape(sample.title)}", ""]
        lines += [f"- answer: {escape(reference)}" for reference in sample.references]
        lines += [f"- prompt: {sample.prompt_sha256[:12]}", ""]
        lines += [*grid_lines(sample_grid(sample, primary_of(metrics), max_chars)), ""]
    return "\n".join(lines if len(lines) > 2 else [*lines, "No trial is recorded yet.", ""])


def grid_lines(grid: Grid) -> list[str]:
    """The table as lines of Markdown."""
    return [
        _line(escape(column.title) for column in grid.columns),
        _line("--:" if column.right else "---" for column in grid.columns),
        *(_line(map(_cell, row, grid.columns)) for row in grid.rows),
    ]


def escape(text: str) -> str:
    """Text that displays literally in one cell of a Markdown table, unprintable characters as ``\\u`` escapes."""
    return MARKED.sub(r"\\\g<0>", visible(text)).replace("\n", "<br>")


def _cell(cell: Cell, column: Column) -> str:
    return escape(str(cell)) or ("*(empty)*" if column.kind == "response" else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
