"""``report.html``: one self-contained file that loads nothing."""

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from kvfw.analysis.names import visible
from kvfw.analysis.samples import samples
from kvfw.analysis.sources import Report
from kvfw.core.contracts.records import RowKey
from kvfw.core.contracts.settings import flat_settings
from kvfw.report.canvas import Drawing
from kvfw.report.headline import headline
from kvfw.report.tables import comparison_grids, facet_grids, missing_notes, pairs_grid, sample_grid, summary_grid
from kvfw.report.texts import options, stages

MAX_CHARS = 400
"""Longer responses are cut."""
LONGEST_WORD = 32
"""Longer parts of compositions may break anywhere."""


def html_page(report: Report, drawings: Sequence[Drawing]) -> str:
    """The page. Texts are escaped and their invisible characters made visible; no scripts, links or external files."""
    results = report.results
    order = [RowKey(row.compose, row.amount) for row in results.rows]
    comparisons, shown = comparison_grids(results), comparison_grids(results, leading_only=True)
    return _template().render(
        headline=headline(report),
        summary=summary_grid(results),
        comparisons=shown,
        folded=comparisons[len(shown) :],
        facets=list(facet_grids(results)),
        drawings=drawings,
        samples=[
            (sample, sample_grid(sample, results.primary, MAX_CHARS)) for sample in samples(report.records, order=order)
        ],
        notes=[*report.notes, *missing_notes(results)],
        runs=[
            (
                source.name,
                [
                    pairs_grid(title, list(flat_settings(values)))
                    for title, values in (("Settings", source.settings), ("Facts", source.facts))
                    if values
                ],
            )
            for source in report.sources
        ],
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kvfw.report"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["words"] = words
    return environment.get_template("report.html.j2")


def words(compose: str) -> list[tuple[str, bool]]:
    """The parts of a composition between which a line may break, and whether each must stay whole."""
    parts = [part for stage in stages(visible(compose)) for part in options(stage)]
    return [(part, len(part) <= LONGEST_WORD) for part in parts]


def _shown(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
