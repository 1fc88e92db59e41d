"""Heat maps of the primary score over two facets of the prompts, one per row of the table."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from kvfw.analysis.results import Results, facet_values
from kvfw.core.contracts.records import Facet, MetricInfo, RowKey, TrialRecord
from kvfw.core.contracts.task import facet_text
from kvfw.report.canvas import (
    DOUBLE_IN,
    FONT_PT,
    LINE_IN,
    SMALL_PT,
    Drawing,
    Sheet,
    drawing_style,
    printable,
    width_of,
    wrapped,
)
from kvfw.report.texts import amount_text, heading, number

COLOURS: Final = LinearSegmentedColormap.from_list("score", ["#FFFFFF", "#9CC9E6", "#0072B2", "#00304D"])
UNKNOWN: Final = "#E4E4E4"
DARK_FROM: Final = 0.55
"""Cells from this share of the scale upwards have white numbers."""
PAGE_ROWS: Final = 6
CELL_IN: Final = 0.19
GAP_IN: Final = 0.18
AIR_IN: Final = 0.05
"""Space between a title and its map."""
TICKS_IN: Final = 0.34
"""Height of tick labels and axis name below the last maps."""


class HeatCell(NamedTuple):
    """The trials of one cell of a map."""

    mean: float
    n: int


Place = tuple[Facet, Facet]
Cells = Mapping[Place, HeatCell]


class Layout(NamedTuple):
    """The layout common to all maps; sizes in inches."""

    info: MetricInfo
    scale: tuple[float, float]
    names: tuple[str, str]
    across: tuple[Facet, ...]
    down: tuple[Facet, ...]
    left_in: float
    panel_in: float
    columns: int

    @property
    def height_in(self) -> float:
        """Height of one map without its title."""
        return CELL_IN * len(self.down)

    def share(self, cell: HeatCell) -> float:
        """Position of the cell on the scale, from 0 to 1."""
        low, high = self.scale
        return (cell.mean - low) / (high - low) if high > low else 0.0


def heat_maps(results: Results, records: Sequence[TrialRecord]) -> list[Drawing]:
    """One map per row, on as many pages as needed; none if no facet has several values or no trial a score."""
    info, axes = results.primary, axes_of(records)
    if info is None or not axes:
        return []
    cells = _cells(records, info, list(axes))
    rows = [key for key in (RowKey(row.compose, row.amount) for row in results.rows) if key in cells]
    if not rows:
        return []
    counts = {cell.n for row in rows for cell in cells[row].values()}
    trials = f"Trials per cell: {counts.pop()}." if len(counts) == 1 else "Cells rest on different numbers of trials."
    with drawing_style():
        layout = _layout(rows, cells, info, list(axes.items()))
        pages = parted(rows, layout.columns * PAGE_ROWS)
        return [
            Drawing(
                "heatmap" if len(pages) == 1 else f"heatmap-{number}",
                f"{heading(info)} by {' and '.join(axes)}, one map per composition and amount. {trials} A dash: not "
                "measured.",
                _page(page, cells, layout),
            )
            for number, page in enumerate(pages, start=1)
        ]


def axes_of(records: Sequence[TrialRecord]) -> dict[str, list[Facet]]:
    """The first two facets with several values, numeric ones first, and those values: across, then down."""
    found = facet_values(records)
    numbers_first = sorted(found, key=lambda name: isinstance(found[name][-1], str))
    return {name: found[name] for name in numbers_first[:2]}


def parted(rows: Sequence[RowKey], size: int) -> list[Sequence[RowKey]]:
    """The rows in pieces of that size; the last may be shorter."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _cells(records: Sequence[TrialRecord], info: MetricInfo, facets: Sequence[str]) -> dict[RowKey, Cells]:
    found: dict[RowKey, dict[Place, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        value = record.metrics.get(info.name)
        across, down = (record.facets.get(facet, "") for facet in (facets[0], facets[-1]))
        # Only shares fit a scale from 0 to 100 %.
        if value is not None and (info.unit != "%" or 0 <= value <= 1):
            found[record.key.row][across, down if len(facets) > 1 else ""].append(value)
    return {
        row: {place: HeatCell(fmean(values), len(values)) for place, values in places.items()}
        for row, places in found.items()
    }


def _layout(
    rows: Sequence[RowKey], cells: Mapping[RowKey, Cells], info: MetricInfo, axes: Sequence[tuple[str, list[Facet]]]
) -> Layout:
    (name, across), (other, down) = axes[0], axes[1] if len(axes) > 1 else ("", [""])
    means = [cell.mean for row in rows for cell in cells[row].values()]
    scale = (0.0, 1.0) if info.unit == "%" else (min(means), max(means))
    left_in = 0.32 + max(width_of(facet_text(value)) for value in down)
    texts = [*map(facet_text, across), *(_number(cell, info) for row in rows for cell in cells[row].values())]
    cell_in = max(0.33, max(map(width_of, texts)) + 0.08)
    panel_in = max(1.15, cell_in * len(across))
    columns = max(1, int((DOUBLE_IN - left_in + GAP_IN) / (panel_in + GAP_IN)))
    if columns > 1:
        # Spread the maps over the whole width.
        panel_in = (DOUBLE_IN - left_in - 0.05 + GAP_IN) / columns - GAP_IN
    shape = (tuple(across), tuple(down))
    return Layout(info, scale, (name, other), *shape, left_in, panel_in, min(columns, len(rows)))


def _number(cell: HeatCell, info: MetricInfo) -> str:
    return number(cell.mean, info, 0 if info.unit == "%" else min(info.digits, 2))


def _title(row: RowKey, width_in: float) -> list[str]:
    return [*wrapped(row.compose, width_in, 3).split("\n"), amount_text(row.amount)]


def _page(rows: Sequence[RowKey], cells: Mapping[RowKey, Cells], layout: Layout) -> Figure:
    lines = parted(rows, layout.columns)
    titles = {row: _title(row, layout.panel_in) for row in rows}
    heads = [max(len(titles[row]) for row in line) * LINE_IN + AIR_IN for line in lines]
    # Upper edge of each line's maps.
    tops = [AIR_IN + sum(heads[: at + 1]) + at * (layout.height_in + GAP_IN) for at in range(len(lines))]
    width = layout.left_in + layout.columns * (layout.panel_in + GAP_IN) - GAP_IN + 0.05
    width = max(width, layout.left_in + width_of(printable(layout.names[0])) + 0.1)
    sheet = Sheet(width, tops[-1] + layout.height_in + TICKS_IN)
    for at, (line, top) in enumerate(zip(lines, tops, strict=True)):
        for across, row in enumerate(line):
            left = layout.left_in + across * (layout.panel_in + GAP_IN)
            # Titles are aligned with their maps at the bottom.
            for rank, text in enumerate(reversed(titles[row]), start=1):
                sheet.text(left, top - AIR_IN - rank * LINE_IN, text, size_pt=SMALL_PT)
            axes = sheet.axes(left, top, layout.panel_in, layout.height_in)
            lowest = at == len(lines) - 1 or across >= len(lines[at + 1])
            _map(axes, cells[row], layout, left=across == 0, below=lowest)
        if layout.height_in > 0.5:
            y = 1 - (top + layout.height_in / 2) / sheet.height_in
            name = printable(layout.names[1])
            sheet.figure.text(
                0.08 / width, y, name, rotation=90, va="center", ha="center", size=SMALL_PT, color="black"
            )
    middle = layout.left_in + (width - layout.left_in) / 2
    sheet.text(middle, sheet.height_in - 0.15, layout.names[0], size_pt=SMALL_PT, align="center")
    return sheet.figure


def _map(axes: Axes, cells: Cells, layout: Layout, *, left: bool, below: bool) -> None:
    shape = (len(layout.down), len(layout.across))
    values = np.full(shape, np.nan)
    for down, across in np.ndindex(shape):
        cell = cells.get((layout.across[across], layout.down[down]))
        if cell is not None:
            values[down, across] = layout.share(cell)
        text = "–" if cell is None else _number(cell, layout.info)
        colour = "white" if cell is not None and layout.share(cell) >= DARK_FROM else "black"
        axes.text(across + 0.5, down + 0.5, text, ha="center", va="center", size=FONT_PT, color=colour)
    axes.set_facecolor(UNKNOWN)
    axes.pcolormesh(values, cmap=COLOURS, vmin=0, vmax=1, edgecolors="#C8C8C8", linewidth=0.5)
    axes.set_ylim(shape[0], 0)
    axes.set_xticks([at + 0.5 for at in range(shape[1])], _ticks(layout.across) if below else [])
    axes.set_yticks([at + 0.5 for at in range(shape[0])], _ticks(layout.down) if left else [])
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _ticks(values: Sequence[Facet]) -> list[str]:
    return [printable(facet_text(value)) for value in values]
