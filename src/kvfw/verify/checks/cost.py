"""Measures what a part costs: time relative to the prompt's prefill, memory relative to the layer's cache."""

import statistics
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kvfw.core.state.observation import Needs
from kvfw.model.load.random_llama import random_llama
from kvfw.model.run.prefill import Prefill, prefill
from kvfw.verify.checks.attached import VOCABULARY, tokenizer
from kvfw.verify.findings.property import CHANGING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Passed, Verdicts
from kvfw.verify.instruments.meter import Meter

TOKENS, LAYERS, REPEATS = 1024, 2, 3
SINKS, RECENT = 4, 84
#: Times the prefill. Both happen once per prompt; a method that takes twice as long as the prefill cannot serve
#: prompts. kvfw's own methods take 0.01 to 0.6; the rest is room for busy machines.
MOST_TIME = 2.0
#: Times the layer's full cache. Layers are compressed one by one, so one layer sets the peak. kvfw's own methods take
#: 0.4 to 5; attention of all queries to all keys takes 25 at this length.
MOST_MEMORY = 20.0


@cache
def model_of_real_shape() -> Any:
    """A random model with the layers of SmolLM2-135M: 9 heads on 3 KV heads of size 64."""
    return random_llama(layers=LAYERS, heads=9, kv_heads=3, head_dim=64, vocabulary=VOCABULARY, spread=0.05)


@dataclass(frozen=True)
class StageCost:
    """Medians of one run.

    Args:
        prefill_s: the prompt alone.
        capture_s: the time that observing adds to it.
        compress_s: compressing all layers.
        extra_bytes: peak memory of compressing one layer, including the result.
        layer_bytes: keys and values of one layer, uncompressed.
    """

    prefill_s: float
    capture_s: float
    compress_s: float
    extra_bytes: int
    layer_bytes: int

    @property
    def time(self) -> float:
        """Time as a multiple of the prefill."""
        return (self.capture_s + self.compress_s) / self.prefill_s

    @property
    def memory(self) -> float:
        """Memory as a multiple of the layer's full cache."""
        return self.extra_bytes / self.layer_bytes

    def __str__(self) -> str:
        return (
            f"time {self.time:.3f} x prefill ({1000 * self.capture_s:.0f} ms to observe and "
            f"{1000 * self.compress_s:.0f} ms to compress {LAYERS} layers against {1000 * self.prefill_s:.0f} ms; "
            f"{TOKENS} tokens, ratio 4, median of {REPEATS}); extra memory {self.extra_bytes / 2**20:.1f} MB, "
            f"{self.memory:.1f} x the layer's cache"
        )


@torch.inference_mode()
def measured(subject: Subject) -> StageCost:
    """Alternates plain prefill, observing prefill and compression, so that a busy moment slows all of them."""
    bound = subject.bound()
    plain, observed, compressing = [], [], []
    _prefilled(Needs())  # the first forward warms up
    for _ in range(REPEATS):
        plain.append(_prefilled(Needs()).seconds)
        filled = _prefilled(bound.needs)
        observed.append(filled.seconds)
        started = time.perf_counter()
        filled.compressed_states(bound)
        compressing.append(time.perf_counter() - started)
    obs = filled.observations[0]
    slots = bound.middle_slots(torch.tensor([TOKENS]))[:, None].expand(1, obs.state.keys.shape[1]).contiguous()
    with Meter() as meter:
        bound.compress(obs, slots)
    # Observing can only add; a negative difference is noise.
    capture = max(0.0, statistics.median(b - a for a, b in zip(plain, observed, strict=True)))
    return StageCost(
        statistics.median(plain), capture, statistics.median(compressing), meter.peak_bytes, obs.state.kv_bytes
    )


def _prefilled(needs: Needs) -> Prefill:
    ids = torch.randint(3, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(2)).tolist()
    return prefill(model_of_real_shape(), ids, needs, sinks=SINKS, recent=RECENT, vocabulary=tokenizer())


@holds("cost", "time against the prefill and extra memory stay in bounds", CHANGING)
def cost(subject: Subject) -> Verdicts:
    figures = measured(subject)
    if figures.time > MOST_TIME:
        yield Failed(f"observing and compressing within {MOST_TIME:g} x the prompt's prefill", str(figures))
    if figures.memory > MOST_MEMORY:
        yield Failed(f"extra memory within {MOST_MEMORY:g} x the layer's full cache", str(figures))
    yield Passed(str(figures))
