"""Figures of the findings: what compression costs, how it grows, how fast decoding is."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvfw.bench.compression import Cost
from kvfw.bench.findings import Findings
from kvfw.bench.limits import COMPRESSION_BARS
from kvfw.report.canvas import GREY, SINGLE_IN, Drawing, Entry, Legend, Sheet, drawing_style, plot_marker
from kvfw.report.looks import Look, looks

NICE_FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0, 10.0)
DECADES = tuple(10.0**power for power in range(-5, 5))
LEFT_IN, TOP_IN, PLOT_IN, FOOT_IN = 0.55, 0.12, 2.0, 0.42


def figures(found: Findings) -> list[Drawing]:
    """The figures for which there are measurements."""
    marks = looks([*(cost.compose for cost in found.costs), *(cost.compose for cost in found.scaling), "full"])
    drawings = []
    with drawing_style():
        if found.costs:
            drawings.append(_fractions(found.costs, marks))
        if found.scaling:
            drawings.append(_scaling(found.scaling, marks))
        if found.speeds:
            drawings.append(_speeds(found))
    return drawings


def _fractions(costs: Sequence[Cost], marks: dict[str, Look]) -> Drawing:
    curves = {name: [(c.tokens, c.fraction) for c in costs if c.compose == name] for name in _names(costs)}
    sheet, axes = _sheet(list(curves), marks)
    _lines(axes, curves, marks)
    for name, limit in COMPRESSION_BARS.items():
        if name in curves:
            axes.axhline(limit, color=marks[name].line, linewidth=0.5, linestyle=(0, (1, 3)), zorder=1)
    _lengths(axes, sorted({cost.tokens for cost in costs}))
    _logarithmic(axes, NICE_FRACTIONS, lambda value: f"{value * 100:g} %")
    axes.set_ylabel("compression / prefill")
    caption = (
        "Time of compressing all layers as a fraction of the prompt's prefill. Dotted: the most it may be at 3072."
    )
    return Drawing("compression", caption, sheet.figure)


def _scaling(costs: Sequence[Cost], marks: dict[str, Look]) -> Drawing:
    names = _names(costs)
    curves = {name: [(c.tokens, c.compress_s + c.observe_s) for c in costs if c.compose == name] for name in names}
    curves = {name: [(x, y) for x, y in curve if y > 0] for name, curve in curves.items()}
    curves["full"] = [(c.tokens, c.prefill_s) for c in costs if c.compose == names[0]]
    sheet, axes = _sheet(list(curves), marks, {"full": "the prefill itself"})
    _lines(axes, curves, marks)
    _lengths(axes, sorted({cost.tokens for cost in costs}))
    _logarithmic(axes, DECADES, lambda value: f"{value:g}")
    axes.set_ylabel("seconds")
    return Drawing("scaling", "Time by prompt length on a small random model of two layers.", sheet.figure)


def _speeds(found: Findings) -> Drawing:
    marks = looks(["full"])
    points = sorted((speed.slots, speed.tokens_per_s) for speed in found.speeds)
    sheet, axes = _sheet([], marks)
    _lines(axes, {"full": points}, marks)
    _lengths(axes, [slots for slots, _ in points])
    axes.set_xlabel("slots per KV head")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens / s")
    return Drawing("decoding", "Decode speed at batch 1 against the slots that the cache holds.", sheet.figure)


def _names(costs: Sequence[Cost]) -> list[str]:
    return list(dict.fromkeys(cost.compose for cost in costs))


def _sheet(names: list[str], marks: dict[str, Look], titles: dict[str, str] | None = None) -> tuple[Sheet, Axes]:
    entries = [Entry((titles or {}).get(name, name), marks[name]) for name in names]
    legend = Legend(entries, SINGLE_IN - 0.1)
    sheet = Sheet(SINGLE_IN, TOP_IN + PLOT_IN + FOOT_IN + legend.height_in + 0.05)
    axes = sheet.axes(LEFT_IN, TOP_IN, SINGLE_IN - LEFT_IN - 0.12, PLOT_IN)
    legend.draw(sheet, 0.05, TOP_IN + PLOT_IN + FOOT_IN)
    axes.set_xlabel("tokens in the prompt")
    return sheet, axes


def _lines(axes: Axes, curves: dict[str, list[tuple[int, float]]], marks: dict[str, Look]) -> None:
    for name, curve in curves.items():
        axes.plot([x for x, _ in curve], [y for _, y in curve], color=marks[name].line, linewidth=0.8)
        for x, y in curve:
            plot_marker(axes, x, y, marks[name], "full")
    axes.grid(axis="y", color="#dddddd", linewidth=0.4)
    axes.tick_params(colors=GREY)


def _logarithmic(axes: Axes, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    """A logarithmic vertical axis with the ticks that lie within its limits."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _lengths(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    text = FuncFormatter(lambda value, _: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}")
    axes.xaxis.set_major_formatter(text)
