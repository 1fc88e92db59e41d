"""Formats numbers and names, the same for every output format."""

import re
from collections.abc import Callable
from typing import Final

from rich.cells import cell_len

from kvfw.analysis.compare import Comparison
from kvfw.core.contracts.records import MetricInfo

MISSING: Final = "–"
MINUS: Final = "−"


def number(value: float, info: MetricInfo, digits: int | None = None) -> str:
    """A metric's value as displayed, without unit; percentages times 100."""
    scaled = value * 100 if info.unit == "%" else value
    return f"{scaled:.3g}" if abs(scaled) >= 1e6 else f"{scaled:.{info.digits if digits is None else digits}f}"


def signed(value: float, info: MetricInfo, each: Comparison) -> str:
    """The number with a plus or a typographic minus; no sign if it rounds to 0."""
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
    """The metric's title with its unit, unless the title implies it."""
    said = not info.unit or info.unit.lower() in info.title.lower() or info.unit in ("1/s", "tok/s")
    return info.title if said else f"{info.title}, {info.unit}"


def amount_text(amount: str) -> str:
    """``ratio=4`` as "ratio 4"."""
    return amount.replace("=", " ", 1)


def p_text(p: float | None) -> str:
    """Three decimals without a leading 0, or "<.001"."""
    if p is None:
        return MISSING
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def plain_text(value: object) -> str:
    """A setting in readable form: lists with commas, no quotes, a dash for None."""
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
    """The parts of a composition between which it breaks first: before ``+`` and ``|``, after ``>`` and ``;``."""
    return re.split(r"(?=[+|])|(?<=[>;])", compose)


def options(stage: str) -> list[str]:
    """The parts between which a stage breaks if it is too long: after ``(`` and ``,``."""
    return re.split(r"(?<=[(,])", stage)


def broken(compose: str, fits: Callable[[str], bool]) -> list[str]:
    """The lines of a composition, broken so that each fits unless a single word is too long."""
    lines: list[str] = []
    for stage in stages(compose):
        for at, piece in enumerate([stage] if fits(stage) else options(stage)):
            # A stage that needs several lines starts on a new one.
            if lines and fits(lines[-1] + piece) and (at > 0 or fits(stage)):
                lines[-1] += piece
            else:
                lines.append(piece)
    return lines


def break_compose(compose: str, width: int) -> str:
    """A composition broken into lines of ``width`` terminal columns."""
    return "\n".join(broken(compose, lambda line: cell_len(line) <= width))
