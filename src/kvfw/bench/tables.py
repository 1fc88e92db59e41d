"""The findings as tables and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

from kvfw.bench.compression import Cost
from kvfw.bench.decoding import Speed
from kvfw.bench.findings import Findings
from kvfw.bench.held import Held
from kvfw.bench.limits import Bar
from kvfw.bench.peak import Peak
from kvfw.bench.scaling import Growth
from kvfw.report.grid import Grid, Spec, grid_of


def as_json(found: Findings) -> str:
    """Everything measured, with promises and exponents of growth."""
    follows = {
        "bars": [{**asdict(bar), "met": bar.met} for bar in found.bars],
        "growths": [asdict(growth) for growth in found.growths],
    }
    return json.dumps({"schema": 3, **asdict(found), **follows}, indent=2, allow_nan=False, default=str) + "\n"


def tables(found: Findings) -> Iterator[Grid]:
    """The promises first, then the measurements behind them."""
    yield grid_of("promises", "Promises", found.bars, BARS)
    for tokens, group in groupby(found.costs, key=lambda cost: cost.tokens):
        costs = list(group)
        title = f"Compression at {tokens} tokens, beside a prefill of {costs[0].prefill_s:.3f} s"
        yield grid_of(f"costs-{tokens}", title, costs, COSTS)
    if found.speeds:
        yield grid_of("speeds", "Decode speed at batch 1", found.speeds, SPEEDS)
    if found.peaks:
        title = "Memory of one prefill, above what the process held before; least of several processes"
        yield grid_of("peaks", title, found.peaks.items(), PEAKS)
    if found.held:
        title = "Bytes of keys and values held, of slots x bytes per slot"
        yield grid_of("held", title, found.held, HELD)
    if found.growths:
        title = "Growth with the prompt, on a small random model: time ~ tokens ^ exponent"
        yield grid_of("growths", title, found.growths, GROWTHS)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} {unit}" if unit else f"{value:.3f}"


BARS: Final[Sequence[Spec[Bar]]] = (
    ("what", "text", lambda bar: bar.what),
    ("at most", "number", lambda bar: _amount(bar.limit, bar.unit)),
    ("measured", "number", lambda bar: _amount(bar.measured, bar.unit)),
    ("margin", "number", lambda bar: None if bar.measured is None else f"{1 - bar.measured / bar.limit:+.0%}"),
    ("", "number", lambda bar: {True: "met", False: "NOT met", None: "not measured"}[bar.met]),
)
COSTS: Final[Sequence[Spec[Cost]]] = (
    ("composition", "compose", lambda cost: cost.compose),
    ("observe s", "number", lambda cost: f"{cost.observe_s:.3f}"),
    ("compress s", "number", lambda cost: f"{cost.compress_s:.3f}"),
    ("of prefill", "number", lambda cost: f"{cost.fraction:.1%}"),
    ("all rounds", "number", lambda cost: f"{cost.lowest:.1%}–{cost.highest:.1%}"),
)
SPEEDS: Final[Sequence[Spec[Speed]]] = (
    ("slots per head", "text", lambda speed: speed.slots),
    ("KV MB", "number", lambda speed: f"{speed.kv_bytes / 2**20:.2f}"),
    ("tokens/s", "number", lambda speed: f"{speed.tokens_per_s:.1f}"),
    ("of the full cache's", "number", lambda speed: f"{speed.relative:.2f}"),
)
PEAKS: Final[Sequence[Spec[tuple[str, Peak]]]] = (
    ("cache", "text", lambda named: named[0]),
    ("peak MB", "number", lambda named: f"{named[1].peak_bytes / 2**20:.1f}"),
    ("KV MB held", "number", lambda named: f"{named[1].kv_bytes / 2**20:.1f}"),
    ("slots x bytes MB", "number", lambda named: f"{named[1].expected_kv_bytes / 2**20:.1f}"),
)
HELD: Final[Sequence[Spec[Held]]] = (
    ("composition", "compose", lambda held: held.compose),
    ("after the prompt", "number", lambda held: f"{held.prompt:.3f}"),
    ("64 tokens later", "number", lambda held: f"{held.decoded:.3f}"),
)
GROWTHS: Final[Sequence[Spec[Growth]]] = (
    ("composition", "compose", lambda growth: growth.compose),
    ("exponent", "number", lambda growth: "–" if growth.exponent is None else f"{growth.exponent:.2f}"),
)
