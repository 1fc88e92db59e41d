"""Figures laid out in inches, for print: single column 3.4 in, double 7 in, no text under 7 pt.

Does not use pyplot or change global state, so other figures of the program are unaffected.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from kvfw.analysis.names import visible
from kvfw.report.looks import Look
from kvfw.report.texts import broken

SINGLE_IN: Final = 3.4
DOUBLE_IN: Final = 7.0
FONT_PT: Final = 7.5
SMALL_PT: Final = 7.0
LINE_IN: Final = 0.13
"""Height of a line of text."""
GREY: Final = "#444444"
MARKER_PT: Final = 5.0
LEGEND_LINES: Final = 4

Format = Literal["svg", "png", "pdf"]


@dataclass(frozen=True)
class Entry:
    """One line of a legend."""

    label: str
    look: Look
    fill: str = "full"


@dataclass(frozen=True)
class Drawing:
    """A finished figure, its file name without suffix, and a caption of a sentence or two."""

    name: str
    caption: str
    figure: Figure = field(repr=False)

    def save(self, form: Format) -> bytes:
        """The figure as a file; the same figure gives the same bytes."""
        out = io.BytesIO()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[form]
        with drawing_style():
            self.figure.savefig(out, format=form, dpi=300, metadata=metadata)
        return out.getvalue()

    @property
    def width_px(self) -> int:
        """Display width on a page."""
        return round(150 * float(self.figure.get_figwidth()))

    def data_uri(self) -> str:
        """The figure as a data URI of its SVG."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.save("svg")).decode()


@contextmanager
def drawing_style() -> Iterator[None]:
    """Within the context: matplotlib's defaults with our settings on top, whatever the user's own are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "font.family": "DejaVu Sans",
                "font.size": FONT_PT,
                "axes.titlesize": FONT_PT,
                "axes.labelsize": FONT_PT,
                "xtick.labelsize": SMALL_PT,
                "ytick.labelsize": SMALL_PT,
                "axes.linewidth": 0.6,
                "axes.edgecolor": GREY,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "xtick.major.width": 0.6,
                "ytick.major.width": 0.6,
                "xtick.major.size": 2.5,
                "ytick.major.size": 2.5,
                "text.parse_math": False,
                "svg.fonttype": "path",
                "svg.hashsalt": "kvfw",
                "pdf.fonttype": 42,
            }
        )
        yield


class Sheet:
    """A figure of a size in inches; axes and texts are placed by their upper left corner."""

    def __init__(self, width_in: float, height_in: float) -> None:
        self.width_in, self.height_in = width_in, height_in
        self.figure = Figure(figsize=(width_in, height_in), facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, left_in: float, top_in: float, width_in: float, height_in: float) -> Axes:
        """Adds axes."""
        left, bottom = left_in / self.width_in, 1 - (top_in + height_in) / self.height_in
        return self.figure.add_axes((left, bottom, width_in / self.width_in, height_in / self.height_in))

    def text(self, left_in: float, top_in: float, text: str, *, size_pt: float = FONT_PT, align: str = "left") -> None:
        """Adds a text, its upper edge at ``top_in``."""
        x, y = left_in / self.width_in, 1 - top_in / self.height_in
        self.figure.text(x, y, printable(text), va="top", ha=align, size=size_pt)


@cache
def _font() -> FT2Font:
    """A separate font for measuring: sizes set on it do not affect drawing."""
    return FT2Font(findfont(FontProperties(family="DejaVu Sans")))


def printable(text: str) -> str:
    """The text with an empty box for each character that the font lacks."""
    return "".join(c if c == "\n" or _font().get_char_index(ord(c)) else "□" for c in visible(text))


def width_of(text: str, size_pt: float = SMALL_PT) -> float:
    """Width of the widest line in inches."""
    font = _font()
    # At 72 dpi a dot is a point; widths are in 64ths of it.
    font.set_size(size_pt, 72)
    widths = []
    for line in text.split("\n"):
        font.set_text(line)
        widths.append(font.get_width_height()[0] / 64 / 72)
    return max(widths)


def wrapped(text: str, width_in: float, most_lines: int, size_pt: float = SMALL_PT) -> str:
    """A composition broken between its parts, or anywhere if a word is too wide; cut after ``most_lines`` lines."""
    lines: list[str] = []
    for line in broken(printable(text).replace("\n", " "), lambda part: width_of(part, size_pt) <= width_in):
        piece = line
        while width_of(piece, size_pt) > width_in and len(piece) > 1:
            cut = _fitting(piece, width_in, size_pt)
            lines.append(piece[:cut])
            piece = piece[cut:]
        lines.append(piece)
    if len(lines) > most_lines:
        last = lines[most_lines - 1]
        lines = [*lines[: most_lines - 1], last[: max(1, _fitting(last, width_in, size_pt) - 2)] + "…"]
    return "\n".join(lines)


def _fitting(text: str, width_in: float, size_pt: float) -> int:
    """How many characters of the text fit, at least 1."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if width_of(text[:middle], size_pt) <= width_in else (low, middle - 1)
    return low


class Legend:
    """A legend to place outside the plots, in as many columns as fit."""

    SYMBOL_IN: Final = 0.18
    GAP_IN: Final = 0.16

    def __init__(self, entries: Sequence[Entry], width_in: float) -> None:
        self.entries = tuple(entries)
        self.width_in = width_in
        self.labels = tuple(wrapped(entry.label, width_in - self.SYMBOL_IN, LEGEND_LINES) for entry in entries)
        widths = [width_of(label) + self.SYMBOL_IN + self.GAP_IN for label in self.labels]
        self.rows, self.lefts = self._columns(widths)
        lines = [max(label.count("\n") + 1 for label in self.labels[row :: self.rows]) for row in range(self.rows)]
        self.tops = [sum(lines[:row]) * LINE_IN for row in range(self.rows)]
        self.height_in = sum(lines) * LINE_IN

    def _columns(self, widths: Sequence[float]) -> tuple[int, list[float]]:
        """The fewest rows whose columns fit side by side, and each column's left edge in inches."""
        for rows in range(1, len(widths) + 1):
            columns = [max(widths[at : at + rows]) for at in range(0, len(widths), rows)]
            if sum(columns) - self.GAP_IN <= self.width_in or rows == len(widths):
                return rows, [sum(columns[:at]) for at in range(len(columns))]
        return 0, []

    def draw(self, sheet: Sheet, left_in: float, top_in: float) -> None:
        """Draws the legend with its upper left corner there."""
        if not self.entries:
            return
        axes = sheet.axes(left_in, top_in, self.width_in, self.height_in)
        axes.set_xlim(0, self.width_in)
        axes.set_ylim(self.height_in, 0)
        axes.axis("off")
        for at, (entry, label) in enumerate(zip(self.entries, self.labels, strict=True)):
            x, y = self.lefts[at // self.rows], self.tops[at % self.rows]
            plot_marker(axes, x + 0.06, y + LINE_IN / 2, entry.look, entry.fill)
            for line, text in enumerate(label.split("\n")):
                axes.text(x + self.SYMBOL_IN, y + (line + 0.5) * LINE_IN, text, va="center_baseline", size=SMALL_PT)


def plot_marker(axes: Axes, x: float, y: float, look: Look, fill: str, *, zorder: float = 3) -> None:
    """Draws one marker. Unfilled parts are white, not transparent, so that lines do not show through."""
    half = fill not in ("full", "none")
    axes.plot(
        [x],
        [y],
        linestyle="none",
        marker=look.marker,
        markersize=MARKER_PT,
        markerfacecolor="white" if fill == "none" else look.colour,
        markerfacecoloralt="white",
        markeredgecolor=look.line,
        markeredgewidth=0.9,
        fillstyle=cast(Literal["left", "right", "bottom", "top"], fill) if half else "full",
        zorder=zorder,
        clip_on=False,
    )
