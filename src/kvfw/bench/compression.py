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
from kvfw.core.state.moments import moments_of
from kvfw.core.state.observation import Needs
from kvfw.core.state.rope import unrotate
from kvfw.model.run.prefill import Prefill, prefill


@dataclass(frozen=True)
class Cost:
    """Cost of one composition on one prompt.

    Attributes:
        compose: the composition.
        tokens: length of the prompt.
        prefill_s: median time of a prefill that observes nothing.
        observe_s: median time of the column sums and moments that the scorers need, in all layers; 0 without them.
        compress_s: median time of compressing all layers, including the copy of the last queries, which is all that
            observing them costs.
        fraction: median over rounds of (observing + compressing) / prefill of the same round.
        lowest, highest: the smallest and the largest fraction of a round.
        probe: median over rounds of probe / prefill; 0 without a probe, whose time is not in ``fraction``.
    """

    compose: str
    tokens: int
    prefill_s: float
    observe_s: float
    compress_s: float
    fraction: float
    lowest: float
    highest: float
    probe: float = 0.0


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
    observing: dict[Observing, list[float]] = defaultdict(list)
    probing: list[float] = []
    compressing: dict[str, list[float]] = defaultdict(list)
    latest: deque[Prefill] = deque(maxlen=1)

    def filled(needs: Needs) -> Prefill:
        words = vocabulary if needs.lexical or needs.probes else None
        return prefill(model, ids, needs, sinks=sinks, recent=recent, vocabulary=words)

    everything = reduce(or_, (by.needs for by in compressors))
    if everything.column_sums or everything.moments:
        everything = everything | Needs(queries=len(ids))
    for say in rounds(tell, repeats, warm_up=True):
        say("prefill")
        plain.append(seconds_of(lambda: filled(Needs()), device))
        say("prefill that observes")
        seconds_of(lambda: latest.append(filled(everything)), device)  # not counted; waits for the device
        shared = latest[0]
        probing.append(shared.probe_seconds)
        for wanted in {_observing(by) for by in compressors} - {NOTHING}:
            say(f"what {' and '.join(str(by.composition) for by in compressors if _observing(by) == wanted)} observes")
            observing[wanted].append(seconds_of(partial(_observe, shared, wanted), device))
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
            observing.get(_observing(by), nothing)[1:],
            compressing[str(by.composition)][1:],
            probing[1:] if by.needs.probes else nothing[1:],
        )
        for by in compressors
    )


#: Distances of column sums, and numbers of first tokens left out of moments.
Observing = tuple[frozenset[int], frozenset[int]]
NOTHING: Observing = (frozenset(), frozenset())


def _observing(by: Compressor) -> Observing:
    return by.needs.column_sums, by.needs.moments


def _observe(filled: Prefill, wanted: Observing) -> list[dict[int, Tensor]]:
    """Adds up what slots received from all queries, and the queries' moments, layer by layer, as the prefill does."""
    found, distances = [], tuple(sorted(wanted[0]))
    for obs in filled.observations.values():
        queries, at = obs.window()
        if wanted[1]:
            flat = queries if obs.rope is None else unrotate(queries, at[:, None], obs.rope)
            for left_out in wanted[1]:
                moments_of(flat, at >= left_out)
        if distances:
            cap, sinks = obs.softcap, obs.sink_logits
            found.append(column_sums(queries, at, obs.state, obs.scale, distances, softcap=cap, sink_logits=sinks))
    return found


def _work(filled: Prefill, by: Compressor) -> None:
    """Copies the queries that the composition needs, as a prefill does, and compresses."""
    if by.needs.queries:
        for obs in filled.observations.values():
            queries = obs.window()[0]
            queries[:, :, -by.needs.last(queries.shape[2]) :].clone()
    filled.compressed_states(by)


def _cost(
    by: Compressor, tokens: int, plain: list[float], observe: list[float], compress: list[float], probe: list[float]
) -> Cost:
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
        probe=median(ratios(probe, plain)),
    )
