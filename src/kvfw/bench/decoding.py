"""Measures decode speed by number of slots kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvfw.bench.clock import Tell, rounds
from kvfw.bench.limits import RECENT, SINKS
from kvfw.core.compose.budget import Amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.state.observation import Needs
from kvfw.model.run.decode import tokens_per_second
from kvfw.model.run.prefill import prefill


@dataclass(frozen=True)
class Speed:
    """Decode speed at batch 1, and the size of the cache.

    Attributes:
        slots: slots per KV head.
        kv_bytes: bytes of keys and values of all layers.
        tokens_per_s: median over repeats, 16 steps each after 2 warm-up steps.
        relative: speed relative to the full cache of the same run.
    """

    slots: int
    kv_bytes: int
    tokens_per_s: float
    relative: float


def speeds(model: Any, ids: Sequence[int], slots: Sequence[int], repeats: int, tell: Tell) -> tuple[Speed, ...]:
    """Speed over the full cache and over ``streaming`` caches: it depends only on the number of slots."""
    filled = prefill(model, ids, Needs(), sinks=SINKS, recent=RECENT)
    states = {len(ids): filled.full_states()}
    for count in slots:
        by = compressor(parse("streaming"), Amount.parse("slots", str(count)), sinks=SINKS, recent=RECENT)
        states[count] = filled.compressed_states(by)
    measured: dict[int, list[float]] = {count: [] for count in states}
    for say in rounds(tell, repeats):
        for count, held in states.items():
            say(f"{count} slots")
            measured[count].append(tokens_per_second(model, filled.cache_of(held), filled.logits))
    full = median(measured[len(ids)])
    return tuple(
        Speed(
            slots=count,
            kv_bytes=filled.cache_of(held).report().kv_bytes,
            tokens_per_s=median(measured[count]),
            relative=median(measured[count]) / full,
        )
        for count, held in states.items()
    )
