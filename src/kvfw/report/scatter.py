"""Scatter plots: the primary score and Ref PPL against bytes, and the score against the share of the answer kept."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from kvfw.analysis.names import is_full, method_of
from kvfw.analysis.results import SIZE, ResultRow, Results
from kvfw.analysis.stats import Interval, Summary
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.canvas import (
    DOUBLE_IN,
    GREY,
    SINGLE_IN,
    Drawing,
    Entry,
    Legend,
    Sheet,
    drawing_style,
    plot_marker,
    printable,
)
from kvfw.report.dodge import apart, side_by_side, spread
from kvfw.report.looks import FILLS, Look, looks
from kvfw.report.tables import leading
from kvfw.report.texts import amount_text, heading

XAxis = Literal["kv_mb", "size_ratio", "ratio"]
"""What the first plot is drawn against."""
RATIOS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "size_ratio": ("Size ratio", "how many times smaller the whole prompt's cache is than the full one"),
        "ratio": ("Ratio asked for", "how many times smaller the middle of the prompt was asked to become"),
    }
)
RETAINED: Final = "span_kept"
LOG_FROM: Final = 3.0
"""An open-ended axis is logarithmic if its highest value is at least this many times its lowest."""
NICE: Final = (1, 1.2, 1.5, 2, 3, 4, 5, 7)
"""Ticks within a decade of a logarithmic axis."""
PLOT_IN: Final = 2.1
BAND: Final = 0.7
"""How far the band behind rows of one size extends beyond their middles, in steps between them."""
LEFT_IN: Final = 0.64
FOOT_IN: Final = 0.42
"""Space below a plot for tick labels, axis name and margin."""


class Point(NamedTuple):
    """One row of the table as a point, in the units shown."""

    compose: str
    amount: str
    x: float
    y: float
    x_bar: Interval | None
    y_bar: Interval | None


class Marks(NamedTuple):
    """How rows look: methods differ by colour and shape, amounts by filling."""

    methods: Mapping[str, Look]
    fills: Mapping[str, str]

    def of(self, point: Point) -> tuple[Look, str]:
        look = self.methods[method_of(point.compose)]
        return look, "full" if is_full(point.compose) else self.fills[point.amount]


class Across(NamedTuple):
    """What an x axis shows: its name, a row's value with its interval (None where it has none), and a description."""

    title: str
    of: Callable[[ResultRow], tuple[float, Interval | None] | None]
    said: str


def scatter_plots(results: Results, x: XAxis = SIZE) -> list[Drawing]:
    """The plots whose values some row has; ``x`` is what the first one is drawn against."""
    marks = _marks(results)
    with drawing_style():
        drawings = [_pareto(results, marks, x), _retained(results, marks)]
    return [drawing for drawing in drawings if drawing is not None]


def _marks(results: Results) -> Marks:
    amounts = dict.fromkeys(row.amount for row in results.rows if not is_full(row.compose))
    return Marks(
        looks(method_of(row.compose) for row in results.rows),
        {amount: FILLS[at % len(FILLS)] for at, amount in enumerate(amounts)},
    )


def _pareto(results: Results, marks: Marks, x: XAxis) -> Drawing | None:
    infos = {info.name: info for info in results.metrics}
    across = _across(infos, x)
    if across is None:
        return None
    panels = [(infos[name], points) for name in leading(results) if (points := _points(results, across, infos[name]))]
    if not panels:
        return None
    width = DOUBLE_IN if len(panels) == 2 else SINGLE_IN
    plot_in = (width - len(panels) * LEFT_IN - 0.1 * len(panels)) / len(panels)
    legend = Legend(_entries(results, marks), width - 0.1)
    sheet = Sheet(width, 0.1 + PLOT_IN + FOOT_IN + legend.height_in + 0.05)
    for at, (info, points) in enumerate(panels):
        axes = sheet.axes(LEFT_IN + at * (plot_in + LEFT_IN + 0.1), 0.1, plot_in, PLOT_IN)
        _against_size(axes, points, info, across, marks, plot_in)
    legend.draw(sheet, 0.05, 0.1 + PLOT_IN + FOOT_IN)
    shown = " and ".join(info.title for info, _ in panels)
    return Drawing(
        "pareto",
        f"{shown} against {across.said} (logarithmic), with 95 % intervals. Rows at one place are set side by side in "
        "a grey band; a line joins the amounts of one composition.",
        sheet.figure,
    )


def _against_size(
    axes: Axes, points: Sequence[Point], info: MetricInfo, across: Across, marks: Marks, width_in: float
) -> None:
    # The axis is in inches, to move rows of one size apart by the width of a marker, not by bytes.
    found = side_by_side([math.log(max(point.x, 1e-9)) for point in points], width_in)
    places = [(place, point.y) for place, point in zip(found.of_values, points, strict=True)]
    for point, place in zip(points, places, strict=True):
        _plot(axes, point, place, marks, across=False)
    _join(axes, points, places, marks)
    for group in found.groups:
        if len(group.members) > 1:
            inside, beyond = [found.of_values[at] for at in group.members], BAND * found.step_in
            axes.axvspan(min(inside) - beyond, max(inside) + beyond, color="#F4F4F4", linewidth=0, zorder=0)
    axes.set_xlim(0, width_in)
    shown = apart([(group.middle_in, f"{math.exp(group.value):.3g}") for group in found.groups], least_in=0.3)
    axes.set_xticks([place for place, _ in shown], [text for _, text in shown])
    axes.set_xlabel(printable(across.title))
    axes.set_ylabel(printable(heading(info)))
    if info.unit == "%":
        _percent(axes, "y")
    else:
        _open_ended(axes, points)


def _retained(results: Results, marks: Marks) -> Drawing | None:
    infos = {info.name: info for info in results.metrics}
    primary = results.primary
    if primary is None or RETAINED not in infos or {primary.unit, infos[RETAINED].unit} != {"%"}:
        return None
    across = _across(infos, RETAINED)
    points = [] if across is None else _points(results, across, primary)
    if not points:
        return None
    legend = Legend(_entries(results, marks), SINGLE_IN - 0.1)
    plot_in = SINGLE_IN - LEFT_IN - 0.15
    sheet = Sheet(SINGLE_IN, 0.1 + plot_in + FOOT_IN + legend.height_in + 0.05)
    axes = sheet.axes(LEFT_IN, 0.1, plot_in, plot_in)
    axes.plot([0, 100], [0, 100], color="#B0B0B0", linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
    per_inch = 108 / plot_in
    shifts = spread([(point.x / per_inch, point.y / per_inch) for point in points])
    for point, shift in zip(points, shifts, strict=True):
        _plot(axes, _moved(point, shift * per_inch), (point.x + shift * per_inch, point.y), marks, across=True)
    _percent(axes, "x")
    _percent(axes, "y")
    axes.set_xlabel(printable(heading(infos[RETAINED])))
    axes.set_ylabel(printable(heading(primary)))
    legend.draw(sheet, 0.05, 0.1 + plot_in + FOOT_IN)
    return Drawing(
        "retained",
        f"{primary.title} against {infos[RETAINED].title}, the share of the answer's tokens that were kept exactly, "
        "with 95 % intervals. On the dashed line the two are equal; below it, what was kept was not used. Rows at one "
        "place are set side by side.",
        sheet.figure,
    )


def _across(infos: Mapping[str, MetricInfo], x: str) -> Across | None:
    """The x axis of that name: a ratio, or a metric; None for a metric that was not measured."""
    if x in RATIOS:
        title, said = RATIOS[x]
        return Across(title, lambda row: (value, None) if (value := getattr(row, x)) else None, said)
    if x not in infos:
        return None
    info = infos[x]
    return Across(heading(info), lambda row: _shown(row.metrics[x], info), "the bytes of the prompt's cache")


def _shown(summary: Summary, info: MetricInfo) -> tuple[float, Interval | None] | None:
    """Mean and interval in the unit shown; None without a value."""
    if summary.mean is None:
        return None
    factor = 100.0 if info.unit == "%" else 1.0
    bar = None if summary.ci95 is None else (summary.ci95[0] * factor, summary.ci95[1] * factor)
    return summary.mean * factor, bar


def _points(results: Results, across: Across, info: MetricInfo) -> list[Point]:
    found = [(row, across.of(row), _shown(row.metrics[info.name], info)) for row in results.rows]
    return [Point(row.compose, row.amount, x[0], y[0], x[1], y[1]) for row, x, y in found if x and y]


def _moved(point: Point, shift: float) -> Point:
    """The point and its interval, moved to the right."""
    bar = point.x_bar
    return point._replace(x=point.x + shift, x_bar=None if bar is None else (bar[0] + shift, bar[1] + shift))


def _plot(axes: Axes, point: Point, place: tuple[float, float], marks: Marks, *, across: bool) -> None:
    """Draws the marker and its intervals; the one ``across`` only if x is a value, not a position."""
    x, y = place
    look, fill = marks.of(point)
    if point.y_bar is not None:
        axes.plot([x, x], list(point.y_bar), color=look.line, linewidth=0.9, zorder=2, solid_capstyle="butt")
    if point.x_bar is not None and across:
        axes.plot(list(point.x_bar), [y, y], color=look.line, linewidth=0.9, zorder=2, solid_capstyle="butt")
    plot_marker(axes, x, y, look, fill)


def _join(axes: Axes, points: Sequence[Point], places: Sequence[tuple[float, float]], marks: Marks) -> None:
    """Draws a thin line through the amounts of each composition."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point, place in zip(points, places, strict=True):
        lines[point.compose].append(place)
    for compose, line in lines.items():
        xs, ys = zip(*sorted(line), strict=True)
        axes.plot(xs, ys, color=marks.methods[method_of(compose)].line, linewidth=0.6, alpha=0.45, zorder=1)


def _entries(results: Results, marks: Marks) -> list[Entry]:
    """Legend entries: methods, then amounts if there are several."""
    grey = Look(GREY, GREY, "o")
    methods = dict.fromkeys(method_of(row.compose) for row in results.rows)
    entries = [Entry(method, marks.methods[method]) for method in methods]
    if len(marks.fills) > 1:
        entries += [Entry(amount_text(amount), grey, fill) for amount, fill in marks.fills.items()]
    return entries


def _percent(axes: Axes, which: Literal["x", "y"]) -> None:
    axes.set(**{f"{which}lim": (-4, 104), f"{which}ticks": range(0, 101, 20)})
    axes.grid(True, axis=which, color="#E6E6E6", linewidth=0.5)
    axes.set_axisbelow(True)


def _open_ended(axes: Axes, points: Sequence[Point]) -> None:
    """Scales the y axis: logarithmic if values are far apart, with plain numbers at the ticks."""
    ends = [end for point in points for end in (point.y, *(point.y_bar or ()))]
    low, high = min(ends), max(ends)
    if low > 0 and high / low >= LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.08, high * 1.08)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [nice * 10.0**decade for decade in decades for nice in (NICE if high / low < 30 else (1, 3))]
        axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low / 1.08 <= tick <= high * 1.08]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        room = 0.08 * (high - low) or 0.1 * max(abs(high), 1e-9)
        axes.set_ylim(low - room, high + room)
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.grid(True, axis="y", color="#E6E6E6", linewidth=0.5)
    axes.set_axisbelow(True)
