"""Measures the bytes that caches hold, beside what their slots are worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

import torch
from torch import Tensor

from kvfw.bench.clock import Tell
from kvfw.bench.limits import MEMORY_RATIO, RECENT, SINKS
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.parts import LayerView
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.run.decode import continued
from kvfw.model.run.prefill import prefill

#: Tokens decoded before bytes are counted again.
STEPS: Final = 64
#: Compositions whose heads differ in size, besides one whose table gives every third head nothing.
UNEVEN: Final = ("snapkv@adakv", "snapkv@global")
#: Codecs are measured over the whole prompt, without tokens that stay as they are.
CODED: Final = "full|kivi(bits=4,residual=0)"


@dataclass(frozen=True)
class Held:
    """Bytes of keys and values of compressed layers, as a share of slots x bytes of a slot in the model's dtype.

    Attributes:
        compose: the composition.
        bits: bits of the model's numbers.
        prompt: after the prompt.
        decoded: after 64 more tokens; they may share room made for more.
    """

    compose: str
    bits: int
    prompt: float
    decoded: float


class _StreamingHeads:
    """What a file of DuoAttention's pattern says: every third KV head of a layer streams, the others share."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        """Budgets; streaming heads get nothing besides sinks and recent tokens."""
        held = [[head for head in range(layer.kv_heads) if head % 3] or [0] for layer in layers]
        each, over = total // sum(map(len, held)), total % sum(map(len, held))
        found, given = [], 0
        for layer, heads in zip(layers, held, strict=True):
            budget = torch.zeros(len(total), layer.kv_heads, dtype=torch.int64, device=total.device)
            for head in heads:
                budget[:, head] = each + (over > given)
                given += 1
            found.append(budget)
        return found


@torch.inference_mode()
def held(model: Any, vocabulary: Any, ids: Sequence[int], tell: Tell) -> tuple[Held, ...]:
    """Bytes under allocators whose heads differ in size, and under a codec."""
    compressors = _measured()
    everything = reduce(or_, (by.needs for by in compressors.values()))
    filled = prefill(model, ids, everything, sinks=SINKS, recent=RECENT, vocabulary=vocabulary)
    found = []
    for name, by in compressors.items():
        tell(name)
        cache = filled.compressed(by)
        after_prompt = _share(cache)
        _feed(model, cache, filled.logits, ids[len(ids) // 2 :][:STEPS])
        found.append(Held(name, 8 * model.dtype.itemsize, after_prompt, _share(cache)))
    return tuple(found)


def _feed(model: Any, cache: CompressedCache, logits: Tensor, text: Sequence[int]) -> None:
    """Feeds tokens one by one; from the middle of a prompt, none of them ends an answer."""
    rest = iter((*text, text[0]))  # the last is chosen and not fed

    def given(_: Tensor) -> int:
        return next(rest)

    continued(model, cache, logits, len(text) + 1, given)


def _measured() -> dict[str, Compressor]:
    named = {name: parse(name) for name in UNEVEN}
    named["streaming, nothing in one head of three"] = parse("streaming").allocated_by(_StreamingHeads())
    named[CODED] = parse(CODED)
    limit = amount(ratio=MEMORY_RATIO)
    return {name: compressor(each, limit, sinks=SINKS, recent=RECENT) for name, each in named.items()}


def _share(cache: CompressedCache) -> float:
    """Bytes held by compressed layers, of what their slots take in the model's dtype."""
    layers = cache.compressed_layers()
    worth = 0
    for layer in layers:
        state = layer.state
        worth += int(state.valid.sum()) * (state.keys.shape[-1] + state.values.shape[-1]) * state.keys.element_size()
    return sum(layer.kv_bytes for layer in layers) / worth
