"""Tables and samples in Markdown. All text is escaped, so none can break out of its cell."""

import re
from collections.abc import Iterable, Sequence

from kvfw.analysis.results import primary_of
from kvfw.analysis.samples import samples
from kvfw.analysis.sources import Report
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.report.grid import Cell, Column, Grid
from kvfw.report.headline import headline
from kvfw.report.tables import comparison_grids, facet_grids, missing_notes, sample_grid, summary_grid

MARKED = re.compile(r"[\\`*_\[\]<>|~&#$]")
"""Characters that Markdown, its tables or HTML inside it would take for their own."""


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
    """``samples.md``: what every composition answered to the same prompt, one table per prompt.

    Args:
        records, order, max_prompts: as of :func:`~kvfw.analysis.samples.samples`.
        metrics: in table order; the primary score stands beside every response.
        max_chars: of a longer response, the beginning is shown.
    """
    lines = ["# Samples", ""]
    for sample in samples(records, order=order, max_prompts=max_prompts):
        lines += [f"## {escape(sample.title)}", ""]
        lines += [f"- answer: {escape(reference)}" for reference in sample.references]
        lines += [f"- prompt: {sample.prompt_sha256[:12]}", ""]
        lines += [*grid_lines(sample_grid(sample, primary_of(metrics), max_chars)), ""]
    return "\n".join(lines if len(lines) > 2 else [*lines, "No trial is recorded yet.", ""])


def grid_lines(grid: Grid) -> list[str]:
    """The table itself."""
    return [
        _line(escape(column.title) for column in grid.columns),
        _line("--:" if column.right else "---" for column in grid.columns),
        *(_line(map(_cell, row, grid.columns)) for row in grid.rows),
    ]


def escape(text: str) -> str:
    """Text that shows as itself in one cell of a Markdown table."""
    marked = MARKED.sub(r"\\\g<0>", text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " "))
    return "".join(_visible(character) for character in marked)


def _cell(cell: Cell, column: Column) -> str:
    return escape(str(cell)) or ("*(empty)*" if column.kind == "response" else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _visible(character: str) -> str:
    if character == "\n":
        return "<br>"
    # Control characters and separators such as U+2028 may end a line in some readers.
    return character if character.isprintable() else f"\\\\u{ord(character):04x}"
