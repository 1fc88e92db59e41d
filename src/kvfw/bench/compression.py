"""What compressing a prompt costs beside prefilling it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from kvfw.bench.clock import Tell, ratios, rounds, seconds_of
from kvfw.core.compress.compressor import Compressor
from kvfw.core.ops.column_sums import column_sums
from kvfw.core.state.observation import Needs
from kvfw.model.run.prefill import Prefill, prefill


@dataclass(frozen=True)
class Cost:
    """Cost of one composition on one prompt.

    Attributes:
        compose: the composition.
        tokens: length of the prompt.
        prefill_s: median time of a prefill that observes nothing.
        observe_s: median time of adding up the column sums that the scorers asked for, in all layers, as a prefill does
            in between; 0 without them.
        compress_s: median time of compressing all layers, and of copying the last queries of all layers, which is all
            that observing them costs.
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
    model: Any, vocabulary: Any, ids: Sequence[int], compressors: Sequence[Compressor], repeats: int, tell: Tell
) -> tuple[Cost, ...]:
    """Costs of compositions on one prompt.

    Every round prefills once without observing anything and once observing all that any composition asks for; then it
    adds up column sums anew, where they are asked for, and compresses for each composition. Column sums are timed by
    themselves: from one prefill to the next the time moves by more than they take.

    Args:
        model: the model.
        vocabulary: its tokenizer, for lexical features; may be None where none are needed.
        ids: the prompt.
        compressors: what to measure.
        repeats: rounds; one more is run first and not counted.
        tell: is told every step.
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

    everything = Needs()
    for by in compressors:
        everything = everything | by.needs
    if everything.column_sums:
        everything = everything | Needs(queries=len(ids))
    for turn, say in enumerate(rounds(tell, repeats, warm_up=True)):
        say("prefill")
        undisturbed, _ = filled(Needs())
        say("prefill that observes")
        _, shared = filled(everything)
        if turn:
            plain.append(undisturbed)
        for sums in {by.needs.column_sums for by in compressors} - {frozenset()}:
            say(f"column sums at distances {', '.join(map(str, sorted(sums)))}")
            seconds = seconds_of(partial(_observe, shared, sums), device)
            if turn:
                observing.setdefault(sums, []).append(seconds)
        for by in compressors:
            say(str(by.composition))
            # A snapshot that remembers no scores, so that each composition pays for its own.
            seconds = seconds_of(partial(_work, shared.unscored(), by), device)
            if turn:
                compressing[str(by.composition)].append(seconds)
    return tuple(_cost(by, len(ids), plain, observing, compressing) for by in compressors)


def _observe(filled: Prefill, distances: frozenset[int]) -> list[dict[int, Tensor]]:
    """The attention that slots received from all queries, by layer and distance, as the prefill added it up, too."""
    each = tuple(sorted(distances))
    return [
        column_sums(*obs.window(), obs.state, obs.scale, each, softcap=obs.softcap, sink_logits=obs.sink_logits)
        for obs in filled.observations.values()
    ]


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
