"""Findings as tables for people and as JSON for machines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

from rich.table import Table
from rich.text import Text

from kvfw.bench.findings import Findings
from kvfw.bench.limits import Bar


def as_json(found: Findings) -> str:
    """Everything measured, and what follows from it."""
    follows = {
        "bars": [{**asdict(bar), "met": bar.met} for bar in found.bars],
        "growths": [asdict(growth) for growth in found.growths],
    }
    return json.dumps({"schema": 3, **asdict(found), **follows}, indent=2, allow_nan=False, default=str) + "\n"


def tables(found: Findings) -> Iterator[Table]:
    """The promises first, then what they were taken from."""
    yield _grid("Promises", ("what", "at most", "measured", "margin", ""), [_promise(bar) for bar in found.bars])
    for tokens, group in groupby(found.costs, key=lambda cost: cost.tokens):
        costs = list(group)
        yield _grid(
            f"Compression at {tokens} tokens, beside a prefill of {costs[0].prefill_s:.3f} s",
            ("composition", "observe s", "compress s", "of prefill", "all rounds"),
            [
                (
                    c.compose,
                    f"{c.observe_s:.3f}",
                    f"{c.compress_s:.3f}",
                    f"{c.fraction:.1%}",
                    f"{c.lowest:.1%}–{c.highest:.1%}",
                )
                for c in costs
            ],
        )
    if found.speeds:
        yield _grid(
            "Decode speed at batch 1",
            ("slots per head", "KV MB", "tokens/s", "of the full cache's"),
            [
                (str(s.slots), f"{s.kv_bytes / 2**20:.2f}", f"{s.tokens_per_s:.1f}", f"{s.relative:.2f}")
                for s in found.speeds
            ],
        )
    if found.peaks:
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


def _promise(bar: Bar) -> tuple[str, ...]:
    met = {True: "met", False: "NOT met", None: "not measured"}[bar.met]
    margin = "" if bar.measured is None else f"{1 - bar.measured / bar.limit:+.0%}"
    return bar.what, _amount(bar.limit, bar.unit), _amount(bar.measured, bar.unit), margin, met


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} {unit}" if unit else f"{value:.3f}"


def _grid(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # text, since a list in a composition would be read as markup
    return table
