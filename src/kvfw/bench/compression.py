"""Measures what compressing a prompt costs compared with prefilling it."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, or_
from statistics import median
from typing import Any

import torch
from torch import Tensor

from kvfw.bench.clock import Tell, ratios, rounds, seconds_of
from kvfw.core.compress.compressor import Compressor
from kvfw.core.ops.columns import column_sums
from kvfw.core.state.observation import Needs
from kvfw.model.run.prefill import Prefill, prefill


@dataclass(frozen=True)
class Cost:
    """Cost of one composition on one prompt.

    Attributes:
        compose: the composition.
        tokens: length of the prompt.
        prefill_s: median time of a prefill that observes nothing.
        observe_s: median time of adding up the column sums that the scorers need, in all layers; 0 without them.
        compress_s: median time of compressing all layers, including the copy of the last queries, which is all that
            observing them costs.
        fraction: median over rounds of (observing + compressing) / prefill of the same round.
        lowest, highest: the smallest and the largest fraction of a round.
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
    model: Any, vocabulary: Any, ids: Sequence[int], compressors: Sequence[Compressor], repeats: int, tell: Tell
) -> tuple[Cost, ...]:
    """Costs of compositions on one prompt.

    Every round prefills once without observing and once observing everything that any composition needs; then it adds
    up the column sums again, if needed, and compresses with each composition. Column sums are timed by themselves
    because they take less time than two prefills differ by.

    Args:
        model: the model.
        vocabulary: its tokenizer, for lexical features; may be None if none are needed.
        ids: the prompt.
        compressors: what to measure.
        repeats: number of rounds, after one that is not counted.
        tell: called with the name of every step.
    """
    sinks, recent, device = compressors[0].sinks, compressors[0].recent, model.device
    plain: list[float] = []
    observing: dict[frozenset[int], list[float]] = defaultdict(list)
    compressing: dict[str, list[float]] = defaultdict(list)
    latest: deque[Prefill] = deque(maxlen=1)

    def filled(needs: Needs) -> Prefill:
        words = vocabulary if needs.lexical else None
        return prefill(model, ids, needs, sinks=sinks, recent=recent, vocabulary=words)

    everything = reduce(or_, (by.needs for by in compressors))
    if everything.column_sums:
        everything = everything | Needs(queries=len(ids))
    for say in rounds(tell, repeats, warm_up=True):
        say("prefill")
        plain.append(seconds_of(lambda: filled(Needs()), device))
        say("prefill that observes")
        seconds_of(lambda: latest.append(filled(everything)), device)  # not counted; waits for the device
        shared = latest[0]
        for sums in {by.needs.column_sums for by in compressors} - {frozenset()}:
            say(f"column sums at distances {', '.join(map(str, sorted(sums)))}")
            observing[sums].append(seconds_of(partial(_observe, shared, sums), device))
        for by in compressors:
            say(str(by.composition))
            # A snapshot that remembers no scores, so that each composition pays for its own.
            compressing[str(by.composition)].append(seconds_of(partial(_work, shared.unscored(), by), device))
    nothing = [0.0] * (repeats + 1)
    return tuple(
        _cost(
            by,
            len(ids),
            plain[1:],
            observing.get(by.needs.column_sums, nothing)[1:],
            compressing[str(by.composition)][1:],
        )
        for by in compressors
    )


def _observe(filled: Prefill, distances: frozenset[int]) -> list[dict[int, Tensor]]:
    """Adds up the attention that slots received from all queries, by layer and distance, as the prefill does."""
    each = tuple(sorted(distances))
    return [
        column_sums(*obs.window(), obs.state, obs.scale, each, softcap=obs.softcap, sink_logits=obs.sink_logits)
        for obs in filled.observations.values()
    ]


def _work(filled: Prefill, by: Compressor) -> None:
    """Copies the queries that the composition needs, as a prefill does, and compresses."""
    if by.needs.queries:
        for obs in filled.observations.values():
            queries = obs.window()[0]
            queries[:, :, -by.needs.last(queries.shape[2]) :].clone()
    filled.compressed_states(by)


def _cost(by: Compressor, tokens: int, plain: list[float], observe: list[float], compress: list[float]) -> Cost:
    fractions = ratios(list(map(add, observe, compress)), plain)
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
