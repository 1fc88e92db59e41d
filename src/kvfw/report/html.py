"""``report.html``: one file that holds everything it shows and loads nothing."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pydantic import JsonValue

from kvfw.analysis.names import visible
from kvfw.analysis.samples import PromptAnswers, samples
from kvfw.core.contracts.records import RowKey
from kvfw.report.canvas import Drawing
from kvfw.report.grid import Grid, comparison_grids, depth_grid, null_notes, summary_grid
from kvfw.report.headline import headline
from kvfw.report.settings import flat_settings, plain_text
from kvfw.report.source import Report

OPEN_GRIDS = ("recall-", "ref_ppl-")
"""Comparisons that are shown at once; the others are folded."""


class Picture(NamedTuple):
    """A figure as the page embeds it."""

    caption: str
    uri: str
    width_px: int


class Facts(NamedTuple):
    """Settings and facts of one run."""

    name: str
    settings: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]


def html_page(report: Report, drawings: Sequence[Drawing]) -> str:
    """The page. Texts are escaped, invisible characters in them made visible; no script, no link, no load."""
    results = report.results
    order = [RowKey(row.compose, row.amount) for row in results.rows]
    comparisons = comparison_grids(results)
    return _template().render(
        headline=_shown(headline(report)),
        summary=summary_grid(results),
        comparisons=[grid for grid in comparisons if grid.name.startswith(OPEN_GRIDS)],
        folded=[grid for grid in comparisons if not grid.name.startswith(OPEN_GRIDS)],
        depths=depth_grid(results),
        pictures=[_picture(drawing) for drawing in drawings],
        samples=[_sample(sample) for sample in samples(report.records, order=order)],
        notes=[visible(note) for note in (*report.notes, *null_notes(results))],
        runs=[
            Facts(visible(source.name), _rows(dict(source.settings)), _rows(dict(source.facts)))
            for source in report.sources
        ],
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("kvfw.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["new_block"] = new_block
    return environment.get_template("report.html.j2")


def new_block(at: int, grid: Grid) -> bool:
    """Whether the row begins another amount than the one above it."""
    return at > 0 and grid.rows[at][1].main != grid.rows[at - 1][1].main


def _picture(drawing: Drawing) -> Picture:
    return Picture(drawing.caption, drawing.data_uri(), round(150 * float(drawing.figure.get_figwidth())))


def _sample(sample: PromptAnswers) -> PromptAnswers:
    answers = tuple(
        each._replace(compose=visible(each.compose), amount=visible(each.amount), response=visible(each.response))
        for each in sample.answers
    )
    return sample._replace(answer=visible(sample.answer), answers=answers)


def _rows(values: dict[str, JsonValue]) -> tuple[tuple[str, str], ...]:
    return _shown(tuple((name, plain_text(value)) for name, value in flat_settings(values)))


def _shown(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((visible(name), visible(text)) for name, text in pairs)
