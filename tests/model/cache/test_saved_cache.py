"""Compressed caches in files: what goes on with one goes on token for token, and a wrong file is one clear error."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import kvfw
from helpers.tiny_models import Ragged, build, forward, generate, prompt, same_bits, stored, text_ids, tiny
from kvfw.core.compress.allocation import EvenSplit
from kvfw.errors import BudgetError, KvfwError, OptionError, RunError, SpecError, StoreError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.saved import checksum
from kvfw.model.load.load import LoadedModel
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 60, 12
BIASED = "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv(window=8),bias=log)"
MIX = "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2"


def going_on(model: PreTrainedModel, cache: CompressedCache, ids: Tensor, mask: Tensor, **options: Any) -> Tensor:
    return generate(model, ids, NEW, cache=cache, attention_mask=mask, **options)


def equal_caches(first: CompressedCache, second: CompressedCache) -> None:
    assert len(first.layers) == len(second.layers)
    for i, sliding in enumerate(first.is_sliding):
        if sliding:
            assert all(torch.equal(a, b) for a, b in zip(stored(first, i), stored(second, i), strict=True))
        else:
            assert same_bits(first.state(i), second.state(i))
    assert first.get_seq_length() == second.get_seq_length()
    assert [layer.slots for layer in first.report().layers] == [layer.slots for layer in second.report().layers]


@pytest.mark.parametrize(
    ("name", "composition", "allocator"),
    [
        ("llama", "snapkv(window=8)", None),
        ("llama", BIASED, Ragged()),
        ("gemma3", MIX, Ragged()),
        ("gpt2", "streaming", None),
        ("yarn", MIX, None),
    ],
)
def test_a_loaded_cache_goes_on_token_for_token(
    name: str, composition: str, allocator: Ragged | None, tmp_path: Path
) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    path = tmp_path / "folder" / "prompt.kv"
    with attach(model, composition, ratio=4, allocator=allocator, **PROTECTED) as cache:
        first = generate(model, ids, 3, cache=cache)
        kvfw.save_cache(cache, path)
        so_far = torch.cat((ids, first, prompt(6, seed=4)), dim=1)
        loaded = kvfw.load_cache(model, path)
        equal_caches(loaded, cache)
        assert loaded.report().compress_s == cache.report().compress_s
        for saved, held in zip(loaded.compressed_layers(), cache.compressed_layers(), strict=True):
            # Room for further tokens is not saved.
            assert saved.kv_bytes <= held.kv_bytes <= 1.02 * saved.kv_bytes
        expected = going_on(model, cache, so_far, torch.ones_like(so_far))
    with kvfw.attach(model, cache=loaded) as again:
        assert again is loaded
        assert torch.equal(going_on(model, again, so_far, torch.ones_like(so_far)), expected)
    equal_caches(loaded, cache)
    assert list(path.parent.iterdir()) == [path]


def test_a_padded_batch_in_bfloat16(tmp_path: Path) -> None:
    model = build("llama").bfloat16()
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    ids[0], ids[1, 20:] = prompt(LENGTH)[0], prompt(LENGTH - 20, seed=2)[0]
    with attach(model, BIASED, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        first = generate(model, ids, 3, cache=cache, attention_mask=(ids != 0).long())
        kvfw.save_cache(cache, tmp_path / "batch")
        so_far = torch.cat((ids, first), dim=1)
        mask = torch.cat((ids != 0, torch.ones_like(first, dtype=torch.bool)), dim=1).long()
        expected = going_on(model, cache, so_far, mask)
    loaded = kvfw.load_cache(model, tmp_path / "batch")
    assert loaded.state(0).keys.dtype == torch.bfloat16
    with kvfw.attach(model, cache=loaded):
        assert torch.equal(going_on(model, loaded, so_far, mask), expected)


@pytest.mark.parametrize("composition", ["h2o", "h2o:0.5+ewmeans_post(iters=2,weight=h2o):0.5", "snapkv(window=16)"])
def test_a_block_that_compresses_while_decoding_is_taken_up_where_it_stopped(composition: str, tmp_path: Path) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    options: dict[str, Any] = {"slots": 24, "compress_every": 5, **PROTECTED}
    with attach(model, composition, **options) as cache:
        first = generate(model, ids, 8, cache=cache)
        kvfw.save_cache(cache, tmp_path / "kv")
        so_far = torch.cat((ids, first), dim=1)
        expected = going_on(model, cache, so_far, torch.ones_like(so_far))
    with attach(model, composition, cache=kvfw.load_cache(model, tmp_path / "kv"), **options) as loaded:
        assert torch.equal(going_on(model, loaded, so_far, torch.ones_like(so_far)), expected)
    equal_caches(loaded, cache)
    for ours, theirs in zip(loaded.compressed_layers(), cache.compressed_layers(), strict=True):
        assert ours.captured.sums.keys() == theirs.captured.sums.keys()
        assert all(torch.equal(ours.captured.sums[n], sums) for n, sums in theirs.captured.sums.items())


def test_a_ratio_of_a_loaded_cache_counts_from_what_it_has_seen(tmp_path: Path) -> None:
    model = tiny("llama")
    with attach(model, "streaming", ratio=2, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        kvfw.save_cache(cache, tmp_path / "kv")
    loaded = kvfw.load_cache(model, tmp_path / "kv")
    with attach(model, "streaming", ratio=4, compress_every=2, cache=loaded, **PROTECTED), torch.inference_mode():
        forward(model, prompt(2), loaded)
    assert loaded.state(0).width == 12 + (LENGTH - 12) // 4


def test_a_closed_block_can_be_taken_up_without_a_file() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, BIASED, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
    with attach(model, cache=cache), torch.inference_mode():
        later = forward(model, prompt(5, seed=2), cache)
    with attach(model, BIASED, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
        assert torch.equal(forward(model, prompt(5, seed=2), cache), later)


# --- files that are wrong --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tiny("llama")
    with attach(model, MIX, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        kvfw.save_cache(cache, tmp_path / "kv")
    return tmp_path / "kv"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: tiny("qwen2"), "architecture LlamaForCausalLM there, Qwen2ForCausalLM here"),
        (lambda: tiny("mha"), "KV heads 2 there, 4 here"),
        (lambda: build("llama", num_hidden_layers=2), "layers 3 × DynamicLayer there, 2 × DynamicLayer here"),
        (lambda: tiny("yarn"), "RoPE .*default.* there, .*yarn.* here"),
        (lambda: build("llama").bfloat16(), "dtype float32 there, bfloat16 here"),
        (lambda: build("llama", seed=1), "the same architecture, but other weights"),
    ],
)
def test_a_file_of_another_model_is_refused_by_what_differs(saved: Path, other: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        kvfw.load_cache(other(), saved)


def test_the_same_weights_loaded_again_will_do(saved: Path) -> None:
    assert kvfw.load_cache(build("llama"), saved).get_seq_length() == LENGTH


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_one_error(saved: Path, part: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(RunError, match="save it again"):
        kvfw.load_cache(tiny("llama"), saved)


def test_foreign_files_are_one_error(saved: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    (tmp_path / "text").write_text("no cache at all " * 20)
    save_file({"x": torch.zeros(3)}, tmp_path / "weights")
    for name in ("text", "weights"):
        with pytest.raises(RunError, match=str(tmp_path / name)):
            kvfw.load_cache(model, tmp_path / name)
    for name in ("absent", "."):
        with pytest.raises(RunError, match="cannot read a saved cache"):
            kvfw.load_cache(model, tmp_path / name)


@pytest.mark.parametrize("fault", ["missing", "shape", "version", "header"])
def test_a_file_whose_parts_do_not_fit_is_one_error(saved: Path, fault: str) -> None:
    from safetensors import safe_open

    with safe_open(saved, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(saved)
    header = json.loads(metadata["kvfw_cache"])
    if fault == "missing":
        del tensors["1.keys"]
    elif fault == "shape":
        tensors["1.mass"] = tensors["1.mass"][..., 1:].contiguous()
    elif fault == "version":
        header["version"] = 99
    else:
        header["layers"] = header["layers"][:2]
    header["sha256"] = checksum({name: said for name, said in header.items() if name != "sha256"}, tensors)
    save_file(tensors, saved, {"kvfw_cache": json.dumps(header)})
    with pytest.raises(RunError, match="save it again") as told:
        kvfw.load_cache(tiny("llama"), saved)
    assert "checksum" not in str(told.value)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8, 0.999])
@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_a_damaged_number_is_one_error(saved: Path, place: float, flip: int) -> None:
    content = bytearray(saved.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    content[begin + int(place * (len(content) - begin))] ^= flip
    saved.write_bytes(content)
    with pytest.raises(RunError, match=r"content is damaged.*save it again"):
        kvfw.load_cache(tiny("llama"), saved)


def test_a_damaged_header_is_one_error(saved: Path) -> None:
    content = saved.read_bytes()
    for old in (b"compressed_at", b"compress_s"):
        at = content.index(old)
        digit = next(i for i in range(at, at + 80) if content[i : i + 1].isdigit())
        other = b"7" if content[digit : digit + 1] != b"7" else b"8"
        saved.write_bytes(content[:digit] + other + content[digit + 1 :])
        with pytest.raises(RunError, match="content is damaged"):
            kvfw.load_cache(tiny("llama"), saved)


def test_a_folder_is_no_file_to_save_to(saved: Path) -> None:
    cache = kvfw.load_cache(tiny("llama"), saved)
    with pytest.raises(OptionError, match="the name of a file in it"):
        kvfw.save_cache(cache, saved.parent)
    with pytest.raises(StoreError, match="cannot write"):
        kvfw.save_cache(cache, saved.parent / ("x" * 300))


def test_a_failed_save_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    cache = kvfw.load_cache(tiny("llama"), saved)

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        kvfw.save_cache(cache, saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# --- caches that cannot be saved or taken up -------------------------------------------------------------


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    model = tiny("llama")
    with attach(model, "streaming", ratio=4, prompt_tokens=LENGTH, **PROTECTED) as cache, torch.inference_mode():
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="prompt is not over"):
                kvfw.save_cache(cache, tmp_path / "kv")
            forward(model, prompt(LENGTH // 2), cache)
        kvfw.save_cache(cache, tmp_path / "kv")
    copied = pickle.loads(pickle.dumps(cache))
    assert same_bits(copied.state(0), cache.state(0))
    with pytest.raises(UnsupportedError, match="not in memory any more"):
        kvfw.save_cache(copied, tmp_path / "kv")
    with pytest.raises(UnsupportedError, match="not in memory any more"), attach(model, cache=copied):
        pytest.fail("attached")


@pytest.mark.parametrize("wrong", [None, 3, b"x", [], "", "a\0b"])
def test_a_path_that_is_none_is_refused(saved: Path, wrong: Any) -> None:
    model = tiny("llama")
    cache = kvfw.load_cache(model, saved)
    with pytest.raises(OptionError, match=r"save_cache was given the path .* name of a file"):
        kvfw.save_cache(cache, wrong)
    with pytest.raises(OptionError, match=r"load_cache was given the path .* name of a file"):
        kvfw.load_cache(model, wrong)


def test_something_else_than_a_cache_or_a_model_is_refused(saved: Path, tmp_path: Path) -> None:
    others: list[Any] = [None, 3, DynamicCache(), tiny("llama")]
    for other in others:
        with pytest.raises(UnsupportedError, match=f"save_cache takes a cache .*, not {type(other).__name__}"):
            kvfw.save_cache(other, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    others = [None, 3, "smollm2-135m", torch.nn.Linear(2, 2)]
    for other in others:
        with pytest.raises(
            UnsupportedError, match=f"load_cache takes a transformers model, not {type(other).__name__}"
        ):
            kvfw.load_cache(other, saved)


def test_what_cannot_be_taken_up_is_refused(saved: Path) -> None:
    model = tiny("llama")
    cache = kvfw.load_cache(model, saved)
    untyped: Any = object()
    wrong: list[tuple[dict[str, Any], type[KvfwError], str]] = [
        ({"cache": untyped}, UnsupportedError, "not object"),
        ({}, SpecError, "no composition"),
        ({"cache": cache, "ratio": 4}, BudgetError, "leave out ratio="),
        ({"cache": cache, "compress_every": 4}, BudgetError, "leave out compress_every="),
        ({"cache": cache, "allocator": EvenSplit()}, BudgetError, "leave out allocator="),
        ({"cache": cache, "composition": "h2o", "slots": 99, "compress_every": 4}, UnsupportedError, "from the prompt"),
    ]
    for options, error, words in wrong:
        with pytest.raises(error, match=words), attach(model, **options):
            pytest.fail("attached")
    with pytest.raises(UnsupportedError, match="made by another model: KV heads"), attach(tiny("mha"), cache=cache):
        pytest.fail("attached")
    with (
        attach(model, cache=cache),
        pytest.raises(UnsupportedError, match="still open"),
        attach(model, cache=cache),
    ):
        pytest.fail("attached")
    # A cache that was refused or left is ready for the next block.
    with attach(model, cache=cache):
        assert generate(model, prompt(LENGTH + 3), 2, cache=cache).shape == (1, 2)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.real
def test_a_real_cache_saved_and_loaded(smollm: LoadedModel, tmp_path: Path) -> None:
    model, ids = smollm.model, text_ids(smollm, 210)
    with attach(model, MIX, ratio=4, sinks=4, recent=32) as cache:
        first = generate(model, ids[:, :200], 3, cache=cache, repetition_penalty=1.0)
        kvfw.save_cache(cache, tmp_path / "kv")
        so_far = torch.cat((ids[:, :200], first, ids[:, 200:]), dim=1)
        expected = generate(model, so_far, 6, cache=cache, repetition_penalty=1.0)
    with attach(model, cache=kvfw.load_cache(model, tmp_path / "kv")) as loaded:
        assert torch.equal(generate(model, so_far, 6, cache=loaded, repetition_penalty=1.0), expected)
