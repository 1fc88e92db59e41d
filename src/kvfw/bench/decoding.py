"""Measures decode speed by number of slots kept, and beside other caches of as many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from kvfw.bench.clock import Tell, rounds
from kvfw.bench.limits import RATIO, RECENT, SINKS
from kvfw.core.compose.budget import Amount, amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.contracts.parts import LayerView
from kvfw.core.state.observation import Needs
from kvfw.model.run.decode import tokens_per_second
from kvfw.model.run.plain import plain_tokens_per_second
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


@dataclass(frozen=True)
class Steps:
    """Time of a decode step at batch 1, relative to one over another cache of as many slots; best of all rounds.

    Attributes:
        uneven: over heads of unequal size, relative to equal ones.
        own: over kvfw's cache, relative to transformers' own.
    """

    uneven: float
    own: float


class _Uneven:
    """Gives every second head a quarter of the mean, and what that leaves to the head before it."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        """Budgets; the total is the same number of slots for every head."""
        mean = total // sum(layer.kv_heads for layer in layers)
        moved, found = 3 * mean // 4, []
        for layer in layers:
            sign = torch.tensor([1, -1] * (layer.kv_heads // 2) + [0] * (layer.kv_heads % 2), device=total.device)
            found.append(mean[:, None] + moved[:, None] * sign)
        return found


def steps(model: Any, ids: Sequence[int], repeats: int, tell: Tell) -> Steps | None:
    """Times caches of as many slots in turns; None for a model with sliding-window layers or one KV head."""
    filled = prefill(model, ids, Needs(), sinks=SINKS, recent=RECENT)
    by = compressor(parse("streaming"), amount(ratio=RATIO), sinks=SINKS, recent=RECENT)
    by_hand = replace(by, composition=by.composition.allocated_by(_Uneven()))
    equal, uneven = filled.compressed_states(by), filled.compressed_states(by_hand)
    if len(equal) < len(filled.cache.layers) or equal[0].keys.shape[1] == 1:
        return None
    best = {"equal": 0.0, "uneven": 0.0, "own": 0.0}
    for say in rounds(tell, repeats):
        for name, states in (("equal", equal), ("uneven", uneven)):
            say(f"{name} heads")
            best[name] = max(best[name], tokens_per_second(model, filled.cache_of(states), filled.logits))
        say("transformers' cache")
        best["own"] = max(best["own"], plain_tokens_per_second(model, equal, filled.logits))
    return Steps(uneven=best["equal"] / best["uneven"], own=best["own"] / best["equal"])
