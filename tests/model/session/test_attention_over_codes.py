"""Attention over codes is attention over what they decode to, however the cache is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kvfw
from helpers.coded_by_loops import by_loops, kivi
from helpers.tiny_models import Ragged, at_once, bound, close, forward, generate, prompt, same_bits, snapshot, tiny
from helpers.uneven import StreamingHeads
from kvfw.core.state.slots import append
from kvfw.core.state.state import exact_state
from kvfw.errors import RequestError
from kvfw.methods.codecs.kivi import Kivi
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.coded import BLOCK, CodedStorage
from kvfw.model.session.attach import attach

LENGTH, NEW = 90, 8
PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8, "ratio": 3}
CODEC = "kivi(group=8,residual=16)"
BIASED = "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv(window=8),bias=log)"


def is_coded(cache: CompressedCache) -> bool:
    layers = cache.compressed_layers()
    return all(isinstance(layer.storage, CodedStorage) and len(layer.storage.kv) > 2 for layer in layers)


def both(answer: Callable[[bool], Any]) -> tuple[Any, Any]:
    """The answer over codes, and over the numbers they stand for, found by loops."""
    found = answer(True)
    with by_loops():
        return found, answer(False)


CASES: dict[str, dict[str, Any]] = {
    "every token": {"compose": f"full|{CODEC}"},
    "selected": {"compose": f"snapkv(window=8)|{CODEC}"},
    "ragged": {"compose": f"snapkv(window=8)@adakv|{CODEC}"},
    "streaming heads": {"compose": f"snapkv(window=8)|{CODEC}", "allocator": StreamingHeads()},
    "biases": {"compose": f"{BIASED}|{CODEC}", "allocator": Ragged()},
    "some layers": {"compose": f"[0]full|{CODEC};[1]full|kivi(bits=4,group=4,residual=0);[2]snapkv(window=8)|{CODEC}"},
    "compress_every": {"compose": f"h2o|{CODEC}", "compress_every": 4},
    "beams": {"compose": f"snapkv(window=8)@adakv|{CODEC}", "generate": {"num_beams": 3}},
    "chunked prefill": {"compose": f"full|{CODEC}", "prompt_tokens": LENGTH, "chunk": 32},
    "eager": {"compose": f"snapkv(window=8)@adakv|{CODEC}", "attention": "eager"},
}


@pytest.mark.parametrize("case", CASES)
def test_generation(case: str) -> None:
    options = dict(CASES[case])
    chunk, extra = options.pop("chunk", None), options.pop("generate", {})
    model, compose = tiny("llama", options.pop("attention", None)), options.pop("compose")

    def answer(coded: bool) -> tuple[Tensor, list[tuple[int, ...]]]:
        ids = prompt(LENGTH)
        with attach(model, compose, **PROTECTED, **options) as cache:
            if chunk:
                with torch.inference_mode():
                    for part in torch.split(ids[:, :-1], chunk, dim=1):
                        forward(model, part, cache)
            tokens = generate(model, ids, NEW, cache=cache, **extra)
            assert is_coded(cache) == coded
            return tokens, [layer.slots for layer in cache.report().layers]

    (ours, slots), (theirs, expected) = both(answer)
    assert torch.equal(ours, theirs)
    assert slots == expected


@pytest.mark.parametrize("compose", ["full", "snapkv(window=8)"])
@pytest.mark.parametrize("recompress", [False, True])
def test_a_padded_batch_and_a_later_turn(compose: str, recompress: bool) -> None:
    """Coded a second time from what the first codes say; with ``full`` codes stay as they are."""
    model, ids = tiny("llama"), prompt(LENGTH, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :25] = 0

    def answer(coded: bool) -> list[Tensor]:
        with attach(model, f"{compose}|{CODEC}", **PROTECTED, recompress=recompress) as cache:
            first = generate(model, ids, NEW, cache=cache, attention_mask=mask)
            so_far = torch.cat((ids, first, prompt(20, seed=4, rows=2)), dim=1)
            later = torch.nn.functional.pad(mask, (0, so_far.shape[1] - LENGTH), value=1)
            later[1, LENGTH + NEW : LENGTH + NEW + 6] = 0  # the second row's turn is shorter
            second = generate(model, so_far, NEW, cache=cache, attention_mask=later)
            assert is_coded(cache) == coded
            return [first, second]

    ours, theirs = both(answer)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_rows_of_a_batch_are_what_they_are_alone() -> None:
    model, ids = tiny("llama"), prompt(LENGTH, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :25] = 0
    alone = [ids[:1, 25:], ids[1:]]
    with attach(model, f"full|{CODEC}", **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0))
    for row, own in enumerate(alone):
        with attach(model, f"full|{CODEC}", **PROTECTED) as single, torch.inference_mode():
            forward(model, own, single)
        for ours, theirs in zip(cache.compressed_layers(), single.compressed_layers(), strict=True):
            valid = ours.state.valid[row]
            for name in ("keys", "values"):
                close(getattr(ours.state, name)[row][valid], getattr(theirs.state, name)[0].flatten(0, 1), atol=1e-3)


def test_tokens_that_a_mask_hides_are_gone() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)

    def answer(coded: bool) -> Tensor:
        with attach(model, f"full|{CODEC}", **PROTECTED) as cache, torch.inference_mode():
            forward(model, ids, cache)
            assert is_coded(cache) == coded
            mask = torch.ones(1, LENGTH + 6, dtype=torch.int64)
            mask[:, 20:40] = 0
            at = torch.arange(LENGTH, LENGTH + 6)[None]
            return forward(model, prompt(6, seed=2), cache, attention_mask=mask, position_ids=at)

    close(*both(answer))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_the_prefill_of_an_evaluation_holds_what_attach_holds(name: str) -> None:
    model, ids, by = tiny(name), prompt(LENGTH), bound(f"snapkv(window=8)@adakv|{CODEC}", ratio=3)
    cache = snapshot(model, ids, by).compressed(by)
    with attach(model, by.composition, **PROTECTED) as other, torch.inference_mode():
        forward(model, ids, other)
        assert cache.held_bytes() == other.held_bytes()
        close(at_once(model, prompt(NEW, seed=2), cache), forward(model, prompt(NEW, seed=2), other))


def test_bytes_are_those_of_the_tensors_held() -> None:
    """72 of 90 slots are coded: 2 bits a number, and 4 bytes for every 8 numbers."""
    model, layers, heads, dim = tiny("llama"), 3, 2, 16
    with attach(model, f"full|{CODEC}", **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
    coded = 72 * 2 * (dim * 2 // 8 + 4 * dim // 8)
    report = cache.report()
    assert report.kv_bytes == cache.held_bytes() == layers * heads * (coded + (LENGTH - 72) * 2 * dim * 4)
    assert report.overhead_bytes == layers * heads * LENGTH * 3 * 4
    assert {layer.slots for layer in report.layers} == {(LENGTH,) * heads}


def test_the_tail_is_coded_when_it_is_long_and_codes_stay_as_they_are() -> None:
    codec, made = Kivi(bits=2, group=8, residual=16), torch.Generator().manual_seed(5)

    def tokens(start: int, count: int) -> Any:
        keys, values = torch.randn(2, 1, 2, count, 16, generator=made)
        positions = torch.arange(start, start + count, dtype=torch.float32)[None]
        return exact_state(keys, values, positions, torch.ones_like(positions, dtype=torch.bool))

    coder = bound(f"full|{CODEC}").rules[0].coder(0)
    assert coder is not None
    plain = tokens(0, LENGTH)
    storage = CodedStorage.of(plain, coder)
    expected, copied, coded = kivi(plain, codec), storage.copy(), 72
    for step in range(2 * BLOCK):
        if len(plain.mass[0, 0]) - coded >= 16 + BLOCK:
            upto = (len(plain.mass[0, 0]) - 16) // 8 * 8
            expected, coded = kivi(expected, codec, first=coded, last=upto), upto
        new = tokens(LENGTH + step, 1)
        with torch.no_grad():
            storage.append(new.keys, new.values)
            storage.place(new.positions[:, 0], None)
        plain, expected = append(plain, new), append(expected, new)
    assert coded > 150
    held = storage.state()
    close(held.keys, expected.keys, atol=1e-5)
    close(held.values, expected.values, atol=1e-5)
    assert torch.equal(held.positions, plain.positions)
    assert storage.width == LENGTH + 2 * BLOCK
    assert sum(part.nbytes for part in storage.kv) < 0.5 * sum(part.nbytes for part in plain.parts[:2])
    assert copied.width == LENGTH


@pytest.mark.parametrize("compose", ["full", "snapkv(window=8)@adakv"])
def test_a_saved_cache_keeps_its_codes(compose: str, tmp_path: Path) -> None:
    model, ids = tiny("llama"), prompt(LENGTH, rows=2)
    with attach(model, f"{compose}|{CODEC}", **PROTECTED) as cache:
        first = generate(model, ids, 3, cache=cache)
        kvfw.save_cache(cache, tmp_path / "coded.kv")
        loaded = kvfw.load_cache(model, tmp_path / "coded.kv")
        assert is_coded(loaded)
        assert all(same_bits(cache.state(i), loaded.state(i)) for i in range(3))
        assert loaded.held_bytes() <= cache.held_bytes() <= 1.02 * loaded.held_bytes()
        so_far = torch.cat((ids, first, prompt(6, seed=4, rows=2)), dim=1)
        expected = generate(model, so_far, NEW, cache=cache)
    with attach(model, cache=loaded) as again:
        assert torch.equal(generate(model, so_far, NEW, cache=again), expected)


def test_a_saved_cache_names_a_codec_that_is_not_installed(tmp_path: Path) -> None:
    model = tiny("llama")
    with attach(model, f"full|{CODEC}", **PROTECTED) as cache:
        generate(model, prompt(LENGTH), 2, cache=cache)
        for layer in cache.compressed_layers():
            object.__setattr__(layer.storage._coder, "text", "mine(bits=1)")  # type: ignore[attr-defined]
        kvfw.save_cache(cache, tmp_path / "coded.kv")
    with pytest.raises(RequestError, match="unknown codec 'mine'"):
        kvfw.load_cache(model, tmp_path / "coded.kv")
