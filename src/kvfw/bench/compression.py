"""What compressing a prompt costs beside prefilling it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from kvfw.bench.clock import ratios, seconds_of
from kvfw.core.compressor import Compressor
from kvfw.core.observation import Needs
from kvfw.model.prefill import Prefill, prefill


@dataclass(frozen=True)
class Cost:
    """Cost of one composition on one prompt.

    Attributes:
        compose: the composition.
        tokens: length of the prompt.
        prefill_s: median time of a prefill that observes nothing.
        observe_s: median time the prefill takes longer for the column sums that the scorers asked for; 0 without them.
        compress_s: median time of compressing all layers, and of copying the last queries of all layers, which is all
            that observing them costs: a difference of two prefills could not show it.
        fraction: median over rounds of (observing + compressing) / prefill of the same round.
        lowest, highest: the same of the round where it was least and most.
    """

    compose: str
    tokens: int
    prefill_s: float
    observe_s: float
    compress_s: float
    fraction: float
    lowest: float
    highest: float


@torch.inference_mode()
def costs(
    model: Any, vocabulary: Any, ids: Sequence[int], compressors: Sequence[Compressor], repeats: int
) -> tuple[Cost, ...]:
    """Costs of compositions on one prompt.

    Every round prefills once without observing anything, once observing queries and text, and twice for every set of
    column sums (with and without them); then it compresses for each composition.

    Args:
        model: the model.
        vocabulary: its tokenizer, for lexical features; may be None where none are needed.
        ids: the prompt.
        compressors: what to measure.
        repeats: rounds; one more is run first and not counted.
    """
    sinks, recent = compressors[0].sinks, compressors[0].recent
    device = model.device
    plain: list[float] = []
    observing: dict[frozenset[int], list[float]] = {}
    compressing: dict[str, list[float]] = {str(by.composition): [] for by in compressors}

    def filled(needs: Needs) -> tuple[float, Prefill]:
        found: list[Prefill] = []
        seconds = seconds_of(
            lambda: found.append(
                prefill(model, ids, needs, sinks=sinks, recent=recent, vocabulary=vocabulary if needs.lexical else None)
            ),
            device,
        )
        return seconds, found[0]

    light = Needs()
    for by in compressors:
        light = light | replace(by.needs, column_sums=frozenset())
    for turn in range(repeats + 1):
        undisturbed, _ = filled(Needs())
        _, shared = filled(light)
        snapshots = {frozenset[int](): shared}
        for sums in {by.needs.column_sums for by in compressors} - {frozenset()}:
            with_sums, snapshots[sums] = filled(light | Needs(column_sums=sums))
            without, _ = filled(light)
            if turn:
                observing.setdefault(sums, []).append(with_sums - without)
        if turn:
            plain.append(undisturbed)
        for by in compressors:
            # A snapshot that remembers no scores, so that each composition pays for its own.
            fresh = snapshots[by.needs.column_sums].unscored()
            seconds = seconds_of(partial(_work, fresh, by), device)
            if turn:
                compressing[str(by.composition)].append(seconds)
    return tuple(_cost(by, len(ids), plain, observing, compressing) for by in compressors)


def _work(filled: Prefill, by: Compressor) -> None:
    """Copies the queries that the composition asks for, as a prefill does, and compresses."""
    if by.needs.queries:
        for obs in filled.observations.values():
            obs.window()[0][:, :, -by.needs.queries :].clone()
    filled.compressed_states(by)


def _cost(
    by: Compressor,
    tokens: int,
    plain: list[float],
    observing: dict[frozenset[int], list[float]],
    compressing: dict[str, list[float]],
) -> Cost:
    compress = compressing[str(by.composition)]
    observe = observing.get(by.needs.column_sums, [0.0] * len(plain))
    both = [first + second for first, second in zip(observe, compress, strict=True)]
    fractions = ratios(both, plain)
    return Cost(
        compose=str(by.composition),
        tokens=tokens,
        prefill_s=median(plain),
        observe_s=median(observe),
        compress_s=median(compress),
        fraction=median(fractions),
        lowest=min(fractions),
        highest=max(fractions),
    )
