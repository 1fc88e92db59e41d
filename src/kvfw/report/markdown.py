"""``tables.md``: the tables in Markdown."""

from kvfw.analysis.samples import escape
from kvfw.report.grid import Grid, comparison_grids, depth_grid, null_notes, summary_grid
from kvfw.report.headline import headline
from kvfw.report.source import Report


def markdown_tables(report: Report) -> str:
    """Headline, summary, comparisons of recall and Ref PPL, recall by depth, notes. All text is escaped."""
    results = report.results
    lines = ["# Results", "", *(f"- {escape(name)}: {escape(text)}" for name, text in headline(report)), ""]
    depths = depth_grid(results)
    grids = [summary_grid(results), *comparison_grids(results, leading_only=True), *([depths] if depths else [])]
    for grid in grids:
        lines += [*grid_lines(grid), ""]
    if notes := (*report.notes, *null_notes(results)):
        lines += ["## Notes", "", *(f"- {escape(note)}" for note in notes), ""]
    return "\n".join(lines)


def grid_lines(grid: Grid) -> list[str]:
    """A heading, the table, its notes."""
    rules = ["---" if at < grid.texts else "--:" for at in range(len(grid.heading))]
    return [
        f"## {escape(grid.title)}",
        "",
        _line([escape(title) for title in grid.heading]),
        _line(rules),
        *(_line([escape(str(cell)) for cell in row]) for row in grid.rows),
        "",
        *(escape(note) + "\n" for note in grid.notes),
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
