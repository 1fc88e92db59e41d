"""Measures what refitting values and biases costs, beside the prefill of the same prompt."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from kvfw.bench.clock import Tell, ratios, rounds, seconds_of
from kvfw.bench.limits import MEMORY_RATIO, RECENT, SINKS
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.state.observation import Needs
from kvfw.model.run.prefill import prefill

#: With as many reference queries per query head as ``refit`` takes by default, 1024.
REFIT: Final = "kvzip@global|refit"


@torch.inference_mode()
def refitting(model: Any, vocabulary: Any, ids: Sequence[int], repeats: int, tell: Tell) -> float:
    """Median over rounds of what a refit takes, in prefills. The probe's time is not in it."""
    without, refitted = (
        compressor(parse(text), amount(ratio=MEMORY_RATIO), sinks=SINKS, recent=RECENT)
        for text in (REFIT.partition("|")[0], REFIT)
    )
    device = model.device
    filled = prefill(model, ids, refitted.needs, sinks=SINKS, recent=RECENT, vocabulary=vocabulary)
    plain, extra = list[float](), list[float]()
    for say in rounds(tell, repeats, warm_up=True):
        say("prefill")
        plain.append(seconds_of(partial(prefill, model, ids, Needs(), sinks=SINKS, recent=RECENT), device))
        taken = list[float]()
        for by in (without, refitted):
            say(str(by.composition))
            taken.append(seconds_of(partial(filled.unscored().compressed_states, by), device))
        extra.append(taken[1] - taken[0])
    return median(ratios(extra[1:], plain[1:]))
