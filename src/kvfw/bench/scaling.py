"""Measures how compression time grows with the prompt, on a small random model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvfw.bench.clock import Tell
from kvfw.bench.compression import Cost, costs
from kvfw.core.compress.compressor import Compressor
from kvfw.model.load.random_llama import random_llama


@dataclass(frozen=True)
class Growth:
    """Growth of time with the prompt's length, as a power law.

    Attributes:
        compose: the composition, or ``prefill``.
        exponent: slope of log time over log tokens, by least squares over the longer half of the lengths;
            None if there are too few.
    """

    compose: str
    exponent: float | None


def scaling(compressors: Sequence[Compressor], tokens: int, repeats: int, tell: Tell) -> tuple[Cost, ...]:
    """Costs on a random prompt of ``tokens`` tokens, on a random Llama of two layers on the CPU."""
    model: Any = random_llama(layers=2, heads=4, kv_heads=2, head_dim=32)
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, model.config.vocab_size, (tokens,), generator=generator).tolist()
    return costs(model, None, ids, compressors, repeats, tell)


def growths(found: Sequence[Cost]) -> tuple[Growth, ...]:
    """Fitted exponents of prefill and of every composition."""
    names = dict.fromkeys(cost.compose for cost in found)
    first = next(iter(names))
    curves = {"prefill": [(cost.tokens, cost.prefill_s) for cost in found if cost.compose == first]}
    for name in names:
        curves[name] = [(cost.tokens, cost.compress_s + cost.observe_s) for cost in found if cost.compose == name]
    return tuple(Growth(name, _exponent(curve)) for name, curve in curves.items())


def _exponent(curve: list[tuple[int, float]]) -> float | None:
    """Slope over the longer half of the lengths, where fixed costs matter least; None for fewer than two."""
    longer = curve[len(curve) // 2 :]
    if len(longer) < 2:
        return None
    x, y = np.log([tokens for tokens, _ in longer]), np.log([seconds for _, seconds in longer])
    return float(np.polynomial.polynomial.polyfit(x, y, 1)[1])
