"""What comes after a compressed prompt: attention over its slots is exact, however the tokens are fed."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from helpers.tiny_models import (
    Ragged,
    allocated,
    at_once,
    bound,
    build,
    close,
    forward,
    one_by_one,
    prompt,
    snapshot,
    tiny,
)
from kvfw.core.state.state import KVState
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.cache.masks import layer_mask
from kvfw.model.compat.routing import routed
from kvfw.model.run.prefill import Prefill

COMPOSITIONS = (
    "snapkv(window=8)",
    "streaming",
    "streaming(positions=cache)",
    "ewmeans_post(iters=2)",
    "snapkv(window=16,kernel=5):0.8+ewmeans_pre(iters=2):0.2",
    "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv,bias=log)",
)
LENGTH, NEW = 90, 12
RAGGED = Ragged()


@functools.cache
def compressed(
    model: PreTrainedModel, composition: str, allocator: Ragged | None, **options: Any
) -> tuple[Prefill, dict[int, KVState]]:
    by = bound(composition, **options)
    taken = snapshot(model, prompt(LENGTH), by)
    return taken, taken.compressed_states(allocated(by, allocator))


def cache_of(
    model: PreTrainedModel, composition: str, allocator: Ragged | None = None, **options: Any
) -> CompressedCache:
    """The compressed cache of the usual prompt; every call makes an equal one that may grow."""
    taken, states = compressed(model, composition, allocator, **options)
    return taken.cache_of(states)


class SlowReference:
    """Attention over given states, one query and one head at a time, with nothing shared with kvfw's own."""

    def __init__(self, states: dict[int, KVState]) -> None:
        self.states = states

    def owns(self, module: nn.Module, key: Tensor) -> bool:
        """All of them."""
        return True

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        state = self.states[int(getattr(module, "layer_idx"))]  # noqa: B009 (nn.Module hides its attributes' types)
        heads, new = query.shape[1], query.shape[2]
        group = heads // key.shape[1]
        out = query.new_zeros(1, new, heads, value.shape[-1])
        for head in range(heads):
            kv = head // group
            valid = state.mass[0, kv] > 0
            for i in range(new):
                keys = torch.cat((state.keys[0, kv][valid], key[0, kv, : i + 1]))
                values = torch.cat((state.values[0, kv][valid], value[0, kv, : i + 1]))
                logits = kwargs["scaling"] * (keys @ query[0, head, i])
                logits[: int(valid.sum())] += state.bias[0, kv][valid]
                out[0, i, head] = logits.softmax(0) @ values
        return out, None

    def see_padding(self, padding: Tensor | None) -> None:
        assert padding is None


@pytest.mark.parametrize(
    ("name", "composition", "allocator"),
    [
        *(("llama", composition, allocator) for composition in COMPOSITIONS for allocator in (None, RAGGED)),
        *((name, COMPOSITIONS[-1], RAGGED) for name in ("mha", "qwen3", "glm", "smollm3")),
    ],
)
def test_attention_over_the_slots_equals_a_slow_reference(
    name: str, composition: str, allocator: Ragged | None
) -> None:
    model = tiny(name)
    cache = cache_of(model, composition, allocator)
    states = {i: layer.state for i, layer in enumerate(cache.compressed_layers())}
    ids = prompt(NEW, seed=2)
    positions = torch.arange(LENGTH, LENGTH + NEW)[None]
    with routed(model, SlowReference(states)), torch.inference_mode():
        expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    close(at_once(model, ids, cache), expected)


@pytest.mark.parametrize(
    ("name", "composition"),
    [
        *(("llama", composition) for composition in COMPOSITIONS),
        *(
            (name, composition)
            for name in ("gemma3", "cohere2", "exaone4", "phi", "gpt2")
            for composition in ("streaming(positions=cache)", "ewmeans_post(iters=2)")
        ),
    ],
)
def test_feeding_at_once_equals_feeding_token_by_token(name: str, composition: str) -> None:
    # Gemma 3, Cohere 2 and EXAONE 4 mix sliding-window layers with full ones: each kind needs its own query offset.
    model = tiny(name)
    ids = prompt(NEW, seed=2)
    together = at_once(model, ids, cache_of(model, composition))
    apart = one_by_one(model, ids, cache_of(model, composition))
    close(together, apart)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("composition", ["streaming", COMPOSITIONS[-1]])
def test_backends_agree_on_a_continuation(composition: str, attention: str) -> None:
    # Eager attention adds whatever mask it gets: a boolean one would shift the logits by 1 and show the future.
    model = tiny("llama", attention)
    ids = prompt(NEW, seed=2)
    together = at_once(model, ids, cache_of(model, composition))
    close(together, one_by_one(model, ids, cache_of(model, composition)))
    other = tiny("llama", "sdpa" if attention == "eager" else "eager")
    close(together, at_once(other, ids, cache_of(other, composition)))


@pytest.mark.parametrize("composition", ["streaming", COMPOSITIONS[-1]])
def test_bfloat16_attends_over_its_slots(composition: str) -> None:
    # The additive mask has to be in the query's dtype; measured difference 0.08, of logits of size 10.
    model = build("llama").bfloat16()
    ids = prompt(NEW, seed=2)
    together = at_once(model, ids, cache_of(model, composition, RAGGED))
    apart = one_by_one(model, ids, cache_of(model, composition, RAGGED))
    close(together, apart, atol=0.1)


# --- the checks above have teeth -------------------------------------------------------------------------


def unequal(first: Tensor, second: Tensor) -> float:
    """Largest difference of two tensors of logits."""
    return float((first - second).abs().max())


def test_a_mask_without_causality_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), prompt(NEW, seed=2)
    right = at_once(model, ids, cache_of(model, "streaming"))
    monkeypatch.setattr("kvfw.model.session.attend.layer_mask", lambda *_, **__: torch.zeros(1, 1, NEW, 1))
    assert unequal(at_once(model, ids, cache_of(model, "streaming")), right) > 0.1


def test_a_bias_on_the_wrong_heads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), prompt(NEW, seed=2)
    right = at_once(model, ids, cache_of(model, COMPOSITIONS[-1]))

    def tiled(state: KVState, new: int, query: Tensor, *, plain: bool) -> Tensor | None:
        mask = layer_mask(state, new, query, plain=plain)
        # Heads 0 0 1 1 of a grouped model, laid out as 0 1 0 1.
        return None if mask is None else mask[:, [0, 2, 1, 3]]

    monkeypatch.setattr("kvfw.model.session.attend.layer_mask", tiled)
    assert unequal(at_once(model, ids, cache_of(model, COMPOSITIONS[-1])), right) > 0.1


def test_the_offset_of_slots_keeps_the_future_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    # Outside a session transformers makes the mask, for queries that stand where the tokens seen end. Slots that are
    # not moved up to there would all be seen by every new token.
    model, ids = tiny("llama"), prompt(NEW, seed=2)

    def plain(step: int) -> Tensor:
        cache = cache_of(model, "streaming")
        with torch.inference_mode():
            return torch.cat([forward(model, part, cache) for part in torch.split(ids, step, dim=1)], dim=1)

    apart = plain(1)
    close(plain(NEW), apart)
    monkeypatch.setattr(CompressedLayer, "get_mask_sizes", lambda self, new: (self.stored + new, 0))
    assert unequal(plain(NEW), apart) > 0.1


@pytest.mark.parametrize("name", ["gemma3", "cohere2"])
def test_sliding_layers_need_the_number_of_tokens_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny(name), prompt(NEW, seed=2)
    right = at_once(model, ids, cache_of(model, "streaming"))
    monkeypatch.setattr(CompressedCache, "get_seq_length", lambda self, layer_idx=0: self.layers[1].stored)
    assert unequal(at_once(model, ids, cache_of(model, "streaming")), right) > 1e-3


# --- positions -------------------------------------------------------------------------------------------


def test_a_model_that_passes_no_positions_on_gets_consecutive_ones() -> None:
    # GPT-2 adds position embeddings and tells its attention nothing. One slot from the middle of the prompt is kept
    # here: new tokens stand after all tokens seen, not after the last one kept.
    model = tiny("gpt2")
    by = bound("uniform", ratio=LENGTH, sinks=0, recent=0)
    taken = snapshot(model, prompt(LENGTH), by)
    assert taken.observations[0].state.positions[0, 0].tolist() == list(range(LENGTH))
    cache = taken.compressed(by)
    assert cache.get_seq_length() == LENGTH
    at_once(model, prompt(2, seed=2), cache)
    assert cache.state(0).positions[0].tolist() == [[LENGTH // 2 - 1, LENGTH, LENGTH + 1]] * 4
