"""Heads of very unequal sizes, held without padding, answer as the same slots do padded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kvfw
from helpers.tiny_models import (
    allocated,
    at_once,
    bound,
    build,
    close,
    forward,
    generate,
    one_by_one,
    prompt,
    snapshot,
    tiny,
)
from helpers.uneven import StreamingHeads, padded
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.masks import layer_mask
from kvfw.model.cache.padded import PaddedStorage
from kvfw.model.cache.ragged import RaggedStorage
from kvfw.model.session.attach import attach
from kvfw.model.session.by_head import attention_by_head

LENGTH, NEW = 90, 10
PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
BIASED = "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv,bias=log)"


@contextmanager
def attached(name: str, compose: str = "snapkv(window=8)", ratio: float = 3, **options: Any) -> Iterator[Any]:
    model = tiny(name)
    with attach(model, compose, ratio=ratio, allocator=StreamingHeads(), **PROTECTED, **options) as cache:
        yield cache


def is_ragged(cache: CompressedCache) -> bool:
    return any(isinstance(layer.storage, RaggedStorage) for layer in cache.compressed_layers())


def both(answer: Callable[[bool], Any]) -> tuple[Any, Any]:
    """The answer with heads held without padding, and padded."""
    found = answer(True)
    with padded():
        return found, answer(False)


def test_one_head_in_three_keeps_nothing_but_its_protected_tokens() -> None:
    with attached("llama") as cache, torch.inference_mode():
        forward(tiny("llama"), prompt(LENGTH), cache)
    slots = [layer.slots for layer in cache.report().layers]
    assert slots[0][1] == slots[2][0] == 12
    assert sum(map(sum, slots)) == 6 * (12 + (LENGTH - 12) // 3)
    held = sum(part.nbytes for layer in cache.compressed_layers() for part in layer.storage.kv)
    assert cache.held_bytes() == cache.report().kv_bytes == held == sum(map(sum, slots)) * (16 + 16) * 4
    with padded(), attached("llama") as other, torch.inference_mode():
        forward(tiny("llama"), prompt(LENGTH), other)
    assert [layer.slots for layer in other.report().layers] == slots
    assert other.held_bytes() > 1.3 * held


@pytest.mark.parametrize("compose", ["snapkv(window=8)", BIASED])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("rows", [1, 2])
def test_attention_head_by_head_is_that_of_the_padded_form(compose: str, count: int, rows: int) -> None:
    model, made = tiny("llama"), torch.Generator().manual_seed(3)
    with attached("llama", compose) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH, rows=rows), cache)
    layer = cache.compressed_layers()[0]
    query = torch.randn(rows, 4, count, 16, generator=made)
    keys, values = torch.randn(2, rows, 2, count, 16, generator=made)
    real = torch.ones(rows, count, dtype=torch.bool)
    real[0, 0] = count == 1  # padding in a later turn
    with torch.no_grad():
        layer.storage.append(keys, values)
        layer.storage.place(torch.full((rows, count), 99.0).masked_fill(~real, -1.0), real)
        heads = layer.storage.heads()
        assert heads is not None
        state = layer.state
        mask = layer_mask(state, count, query, plain=False)
        whole = [part.repeat_interleave(2, dim=1) for part in (state.keys, state.values)]
        logits = query @ whole[0].transpose(-1, -2) * 0.3 + mask
        close(attention_by_head(heads, query, 0.3), (logits.softmax(-1) @ whole[1]).transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mha", "gemma3", "gemma2", "gpt_oss"])
def test_a_continuation(name: str) -> None:
    model, ids, by = tiny(name), prompt(NEW, seed=2), bound("snapkv(window=8)", ratio=3)
    taken = snapshot(model, prompt(LENGTH), by)
    states = taken.compressed_states(allocated(by, StreamingHeads()))
    assert is_ragged(taken.cache_of(states))
    for feed in (at_once, one_by_one):
        found = feed(model, ids, taken.cache_of(states))
        with padded():
            close(found, feed(model, ids, taken.cache_of(states)))
    # Several rows, of which each has its own answer.
    full = taken.full_states()
    ours, theirs = both(lambda _: at_once(model, ids.expand(2, -1), taken.cache_of(full, states)))
    close(ours, theirs)
    close(ours[1:], at_once(model, ids, taken.cache_of(states)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_padded_form_is_made_for_eager_attention_alone(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    padded_form = RaggedStorage._padded

    def watched(self: RaggedStorage, part: int, added: int) -> Tensor:
        made.append(part)
        return padded_form(self, part, added)

    model = build("llama", attention=attention)
    block = attach(model, "snapkv(window=8)", ratio=3, allocator=StreamingHeads(), **PROTECTED)
    with block as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        monkeypatch.setattr(RaggedStorage, "_padded", watched)
        forward(model, prompt(1), cache)
    # With sdpa only the first layer's positions are, to see where the cache ends.
    assert made == [2, *[0, 1, 2, 3, 4] * 3] if attention == "eager" else made == [2]


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "biases": {"compose": BIASED},
    "compress_every": {"compress_every": 4},
    "h2o, compress_every": {"compose": "h2o", "compress_every": 4},
    "beams": {"generate": {"num_beams": 3}},
    "chunked prefill": {"prompt_tokens": LENGTH, "chunk": 32},
}


@pytest.mark.parametrize("case", CASES)
def test_generation(case: str) -> None:
    options = dict(CASES[case])
    chunk, extra = options.pop("chunk", None), options.pop("generate", {})

    def answer(ragged: bool) -> tuple[Tensor, list[tuple[int, ...]]]:
        model, ids = tiny("llama"), prompt(LENGTH)
        with attached("llama", **options) as cache:
            if chunk:
                with torch.inference_mode():
                    for part in torch.split(ids[:, :-1], chunk, dim=1):
                        forward(model, part, cache)
            tokens = generate(model, ids, NEW, cache=cache, **extra)
            assert is_ragged(cache) == ragged
            return tokens, [layer.slots for layer in cache.report().layers]

    (ours, slots), (theirs, padded_slots) = both(answer)
    assert torch.equal(ours, theirs)
    assert slots == padded_slots


def test_rows_of_a_padded_batch_and_a_later_turn_with_recompression() -> None:
    model = tiny("llama")
    ids = prompt(LENGTH, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :25] = 0

    def answer(ragged: bool) -> list[Tensor]:
        with attached("llama", recompress=True) as cache:
            first = generate(model, ids, NEW, cache=cache, attention_mask=mask)
            so_far = torch.cat((ids, first, prompt(20, seed=4, rows=2)), dim=1)
            later = torch.nn.functional.pad(mask, (0, so_far.shape[1] - LENGTH), value=1)
            later[1, LENGTH + NEW : LENGTH + NEW + 6] = 0  # the second row's turn is shorter
            second = generate(model, so_far, NEW, cache=cache, attention_mask=later)
            assert is_ragged(cache) == ragged
            return [first, second]

    ours, theirs = both(answer)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("recompress", [False, True])
def test_tokens_hidden_by_a_mask(recompress: bool) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)

    def answer(ragged: bool) -> Tensor:
        with attached("llama", "snapkv(window=8)", recompress=recompress) as cache, torch.inference_mode():
            forward(model, ids, cache)
            mask = torch.ones(1, LENGTH + 6, dtype=torch.int64)
            mask[:, LENGTH - 30 : LENGTH - 4] = 0
            at = torch.arange(LENGTH, LENGTH + 6)[None]
            logits = forward(model, prompt(6, seed=2), cache, attention_mask=mask, position_ids=at)
            assert is_ragged(cache) == ragged
            return logits

    close(*both(answer))


@pytest.mark.parametrize("how", ["file", "copy", "deepcopy", "repeated"])
def test_caches_that_were_saved_copied_or_repeated(how: str, tmp_path: Path) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)

    def answer(ragged: bool) -> Tensor:
        with attached("llama", BIASED) as cache:
            first = generate(model, ids, 3, cache=cache)
            so_far = torch.cat((ids, first, prompt(6, seed=4)), dim=1)
            taken = cache
            if how == "file":
                kvfw.save_cache(cache, tmp_path / f"{ragged}")
                taken = kvfw.load_cache(model, tmp_path / f"{ragged}")
            elif how == "repeated":
                cache.batch_repeat_interleave(3)
                cache.batch_select_indices(torch.tensor([0, 2]))
                so_far = so_far.expand(2, -1)
            else:
                taken = cache.copy() if how == "copy" else copy.deepcopy(cache)
                generate(model, torch.cat((ids, first, prompt(4, seed=9)), dim=1), 5, cache=cache)
            assert is_ragged(taken) == ragged
        inside = attach(model, cache=taken) if taken.block is None or not taken.block.is_open else nullcontext(taken)
        with inside as again:
            return generate(model, so_far, NEW, cache=again)

    ours, theirs = both(answer)
    assert torch.equal(ours, theirs)
    if how == "file":
        assert (tmp_path / "True").stat().st_size < (tmp_path / "False").stat().st_size


def test_a_file_of_an_earlier_version_is_read_without_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attached("llama") as cache:
        generate(model, ids, 3, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr("kvfw.model.cache.saved.VERSION", 2)
        patch.setattr(RaggedStorage, "written", lambda self: PaddedStorage.of(self.state()).written())
        kvfw.save_cache(cache, tmp_path / "old")
    loaded = kvfw.load_cache(model, tmp_path / "old")
    assert is_ragged(loaded)
    assert [line.slots for line in loaded.report().layers] == [line.slots for line in cache.report().layers]
    close(at_once(model, prompt(NEW, seed=2), loaded), at_once(model, prompt(NEW, seed=2), cache))


@pytest.mark.parametrize("compose", ["snapkv(window=8)", "streaming"])
def test_a_full_cache_with_the_evicted_tokens_hidden_gives_the_same(compose: str) -> None:
    model, ids, by = tiny("mha"), prompt(NEW, seed=2), bound(compose, ratio=3)
    taken = snapshot(model, prompt(LENGTH), by)
    states = taken.compressed_states(allocated(by, StreamingHeads()))
    full = taken.full()
    for i, layer in enumerate(full.compressed_layers()):
        state = layer.state
        kept = (state.positions[..., None] == states[i].positions[..., None, :]).any(-1)
        layer.hold(type(state)(*state.parts[:4], bias=torch.zeros_like(state.bias).masked_fill(~kept, -torch.inf)))
    close(at_once(model, ids, taken.cache_of(states)), at_once(model, ids, full))


def test_outside_attach_it_is_refused() -> None:
    with attached("llama") as cache:
        generate(tiny("llama"), prompt(LENGTH), 2, cache=cache)
    with pytest.raises(kvfw.KvfwError, match=r"use it inside kvfw\.attach"):
        generate(tiny("llama"), prompt(LENGTH + 3), 2, cache=cache)


def test_bytes_before_and_after_64_tokens() -> None:
    model = tiny("llama")
    with attached("llama") as cache, torch.inference_mode():
        forward(model, prompt(600), cache)
        assert cache.held_bytes() == sum(sum(line.slots) for line in cache.report().layers) * (16 + 16) * 4
        for step in range(64):
            forward(model, prompt(1, seed=step), cache)
            exact = sum(sum(line.slots) for line in cache.report().layers) * (16 + 16) * 4
            assert exact <= cache.held_bytes() <= 1.02 * exact
