"""Findings as tables for people and as JSON for machines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from kvfw.bench.bars import Bar
from kvfw.bench.run import Findings


def as_json(found: Findings) -> str:
    """Everything measured."""
    bars = [{**asdict(bar), "met": bar.met} for bar in found.bars]
    return json.dumps({"schema": 1, **asdict(found), "bars": bars}, indent=2, allow_nan=False, default=str) + "\n"


def tables(found: Findings) -> Iterator[Table]:
    """The promises first, then what they were taken from."""
    yield _bars(found.bars)
    yield _grid(
        "Compression, as a fraction of the prompt's prefill",
        ("composition", "tokens", "prefill s", "observe s", "compress s", "fraction"),
        [
            (
                cost.compose,
                str(cost.tokens),
                f"{cost.prefill_s:.3f}",
                f"{cost.observe_s:.3f}",
                f"{cost.compress_s:.3f}",
                f"{cost.fraction:.1%}",
            )
            for cost in found.costs
        ],
    )
    yield _grid(
        "Decode speed at batch 1",
        ("slots per head", "KV MB", "tokens/s", "of the full cache's"),
        [
            (str(speed.slots), f"{speed.kv_bytes / 2**20:.2f}", f"{speed.tokens_per_s:.1f}", f"{speed.relative:.2f}")
            for speed in found.speeds
        ],
    )
    yield _grid(
        "Memory of one prefill, above what the process held before; least of several processes",
        ("cache", "peak MB", "KV MB held", "slots x bytes MB"),
        [
            (name, *(f"{n / 2**20:.1f}" for n in (peak.peak_bytes, peak.kv_bytes, peak.expected_kv_bytes)))
            for name, peak in found.peaks.items()
        ],
    )
    if found.growths:
        yield _grid(
            "Growth with the prompt, on a small random model: time ~ tokens ^ exponent",
            ("composition", "exponent"),
            [
                (growth.compose, "–" if growth.exponent is None else f"{growth.exponent:.2f}")
                for growth in found.growths
            ],
        )


def _bars(bars: tuple[Bar, ...]) -> Table:
    rows = []
    for bar in bars:
        met = {True: "met", False: "NOT met", None: "not measured"}[bar.met]
        margin = "" if bar.measured is None else f"{1 - bar.measured / bar.limit:+.0%}"
        rows.append((bar.what, _amount(bar.limit, bar.unit), _amount(bar.measured, bar.unit), margin, met))
    return _grid("Promises", ("what", "at most", "measured", "margin", ""), rows)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} {unit}" if unit else f"{value:.3f}"


def _grid(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
