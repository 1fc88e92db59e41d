"""Numbers and names as they are shown, the same in every format."""

import re
from collections.abc import Callable
from typing import Final

from rich.cells import cell_len

from kvfw.analysis.compare import Comparison
from kvfw.core.contracts.records import MetricInfo

MISSING: Final = "–"
MINUS: Final = "−"


def number(value: float, info: MetricInfo, digits: int | None = None) -> str:
    """A metric's value as shown, without its unit; percentages times 100."""
    scaled = value * 100 if info.unit == "%" else value
    return f"{scaled:.3g}" if abs(scaled) >= 1e6 else f"{scaled:.{info.digits if digits is None else digits}f}"


def signed(value: float, info: MetricInfo, each: Comparison) -> str:
    """The number with its sign, a real minus; what rounds to 0 has no sign."""
    text = f"{value:.3f}" if each.scale == "log" else number(value, info)
    if float(text) == 0:
        return text.lstrip("-")
    return MINUS + text[1:] if text.startswith("-") else f"+{text}"


def difference_unit(info: MetricInfo, logarithmic: bool) -> str:
    """Points for percentages, nats per token for perplexities."""
    if logarithmic:
        return "nats/token"
    return "points" if info.unit == "%" else info.unit or "plain"


def heading(info: MetricInfo) -> str:
    """The metric's title with its unit, unless the title says it."""
    said = not info.unit or info.unit.lower() in info.title.lower() or info.unit in ("1/s", "tok/s")
    return info.title if said else f"{info.title}, {info.unit}"


def amount_text(amount: str) -> str:
    """``ratio=4`` as "ratio 4"."""
    return amount.replace("=", " ", 1)


def p_text(p: float | None) -> str:
    """Three decimals, "<.001" below them, no needless 0 in front."""
    if p is None:
        return MISSING
    if p < 0.001:
        return "<.001"
    return f"{p:.3f}".removeprefix("0")


def plain_text(value: object) -> str:
    """A setting as people write it: lists by commas, no quotes, a dash for null."""
    if value is None:
        return MISSING
    if isinstance(value, list):
        return ", ".join(map(plain_text, value)) or MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain_text(item)}" for name, item in value.items()) or MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def stages(compose: str) -> list[str]:
    """A composition in the parts between which it breaks first: before ``+`` and ``|``, after ``>`` and ``;``."""
    return re.split(r"(?=[+|])|(?<=[>;])", compose)


def options(stage: str) -> list[str]:
    """A stage in the parts between which it breaks where it is too long: after ``(`` and ``,``."""
    return re.split(r"(?<=[(,])", stage)


def broken(compose: str, fits: Callable[[str], bool]) -> list[str]:
    """A composition on as many lines as it needs, never broken within a word; what cannot break may not fit."""
    lines: list[str] = []
    for stage in stages(compose):
        for at, piece in enumerate([stage] if fits(stage) else options(stage)):
            # A stage of several lines begins a new one.
            if lines and fits(lines[-1] + piece) and (at > 0 or fits(stage)):
                lines[-1] += piece
            else:
                lines.append(piece)
    return lines


def break_compose(compose: str, width: int) -> str:
    """A composition broken into lines of that many columns of a terminal."""
    return "\n".join(broken(compose, lambda line: cell_len(line) <= width))
