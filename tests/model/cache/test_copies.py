"""Copies of a cache, inside a block and after it; caches that an interruption left torn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kvfw
from helpers.tiny_models import build, close, forward, generate, prompt, same_bits, stored, tiny
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 60, 6
COPIES: dict[str, Callable[[CompressedCache], CompressedCache]] = {
    "copy": lambda cache: cache.copy(),
    "deepcopy": copy.deepcopy,
}


def answer_alone(name: str, question: Tensor, **options: Any) -> Tensor:
    """The answer to a question over a prompt compressed for it alone."""
    with attach(tiny(name), "snapkv(window=16)", ratio=4, **PROTECTED, **options) as cache:
        with torch.inference_mode():
            forward(tiny(name), prompt(LENGTH), cache)
        return generate(tiny(name), torch.cat((prompt(LENGTH), question), dim=1), NEW, cache=cache)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("options", [{}, {"recompress": True}, {"compress_every": 3}], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_questions_to_copies_are_answered_as_if_each_were_the_only_one(name: str, options: Any, how: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    questions = [prompt(count, seed=seed) for seed, count in ((3, 5), (4, 20), (5, 1))]
    expected = [answer_alone(name, question, **options) for question in questions]
    with attach(model, "snapkv(window=16)", ratio=4, **PROTECTED, **options) as cache:
        with torch.inference_mode():
            forward(model, ids, cache)
        before = cache.state(1)
        for question, right in zip(questions, expected, strict=True):
            copied = COPIES[how](cache)
            assert torch.equal(generate(model, torch.cat((ids, question), dim=1), NEW, cache=copied), right)
        assert cache.get_seq_length() == LENGTH
        assert cache.state(1) is before
        # The original goes on, too.
        so_far = torch.cat((ids, questions[0]), dim=1)
        assert torch.equal(generate(model, so_far, NEW, cache=cache), expected[0])


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_taken_up_after_the_block(how: str, tmp_path: Path) -> None:
    model, question = tiny("gemma3"), prompt(5, seed=3)
    expected = answer_alone("gemma3", question)
    with attach(model, "snapkv(window=16)", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        inside = COPIES[how](cache)
    for copied in (inside, COPIES[how](cache), COPIES[how](COPIES[how](cache))):
        kvfw.save_cache(copied, tmp_path / "kv")
        for ready in (copied, kvfw.load_cache(model, tmp_path / "kv")):
            with attach(model, cache=ready):
                said = generate(model, torch.cat((prompt(LENGTH), question), dim=1), NEW, cache=ready)
            assert torch.equal(said, expected)


def test_a_copy_takes_no_memory_of_its_own() -> None:
    model = tiny("gemma3")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
    copied = cache.copy()
    for i in range(4):
        assert all(ours is theirs for ours, theirs in zip(stored(cache, i), stored(copied, i), strict=True))
    assert all(ours is not theirs for ours, theirs in zip(cache.layers, copied.layers, strict=True))


def test_seconds_spent_on_a_copy_are_not_the_original_s() -> None:
    model = tiny("llama")
    with attach(model, "snapkv", ratio=4, recompress=True, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        before, copied = list(cache.compress_s), cache.copy()
        forward(model, prompt(NEW, seed=2), copied)
    assert cache.compress_s == before
    assert all(after > first for after, first in zip(copied.compress_s, before, strict=True))


def test_a_reset_forgets_an_announced_end() -> None:
    model = tiny("llama")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        cache.expect(LENGTH)
        forward(model, prompt(LENGTH), cache)
        cache.reset()
        forward(model, prompt(LENGTH - 10), cache)
    assert all(layer.compressed for layer in cache.compressed_layers())


def test_a_copy_survives_its_original_s_reset() -> None:
    model = tiny("gemma3")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        copied = cache.copy()
        expected = forward(model, prompt(NEW, seed=2), cache.copy())
        cache.reset()
        assert cache.get_seq_length() == 0
        close(forward(model, prompt(NEW, seed=2), copied), expected, atol=0)


def test_a_prompt_may_go_through_a_copy_of_the_empty_cache() -> None:
    model = tiny("llama")
    states = []
    for copies in (False, True):
        with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
            used = cache.copy() if copies else cache
            forward(model, prompt(LENGTH), used)
        states.append(used.state(2))
    assert same_bits(*states)


def test_a_copy_of_a_closed_block_s_cache_does_not_take_part_in_the_next_block() -> None:
    model = tiny("llama")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as old, torch.inference_mode():
        forward(model, prompt(LENGTH), old)
    with attach(model, cache=old) as cache:
        assert old.copy().block is cache.block
    assert not any(layer.attached for layer in old.copy().compressed_layers())


# --- torn caches -----------------------------------------------------------------------------------------


class InterruptedForwardError(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("at", ["attention", "compression"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_torn_cache_is_refused_with_the_way_out(
    name: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = build(name), prompt(LENGTH)
    options: dict[str, Any] = {"compress_every": 4} if at == "compression" else {}

    def interrupt(*_: Any, **__: Any) -> None:
        raise InterruptedForwardError

    with attach(model, "snapkv", ratio=4, **PROTECTED, **options) as cache, torch.inference_mode():
        forward(model, ids, cache)
        whole = cache.copy()
        if at == "attention":
            untyped: Any = model
            hook = untyped.model.layers[-1].self_attn.register_forward_pre_hook(interrupt)
            with pytest.raises(InterruptedForwardError):
                forward(model, prompt(1), cache)
            hook.remove()
        else:
            with monkeypatch.context() as patch:
                patch.setattr("kvfw.model.cache.layer.CompressedLayer.hold", interrupt)
                with pytest.raises(InterruptedForwardError):
                    forward(model, prompt(4), cache)
        for refused in (
            lambda: forward(model, prompt(1), cache),
            lambda: kvfw.save_cache(cache, tmp_path / "kv"),
            cache.copy,
        ):
            with pytest.raises(UnsupportedError, match=r"do not hold the same tokens .*cache\.reset\(\)"):
                refused()
        assert not (tmp_path / "kv").exists()
        forward(model, prompt(1), whole)
    with pytest.raises(UnsupportedError, match="do not hold the same tokens"), attach(model, cache=cache):
        pytest.fail("attached")


def test_a_torn_cache_is_whole_after_a_reset() -> None:
    model, ids = build("llama"), prompt(LENGTH)
    untyped: Any = model

    def interrupt(*_: Any, **__: Any) -> None:
        raise InterruptedForwardError

    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        hook = untyped.model.layers[1].self_attn.register_forward_pre_hook(interrupt)
        with pytest.raises(InterruptedForwardError):
            forward(model, ids, cache)
        hook.remove()
        with pytest.raises(UnsupportedError, match="seen, by layer: 60, 0, 0"):
            forward(model, ids, cache)
        cache.reset()
        assert forward(model, ids, cache).shape[1] == LENGTH
    assert all(layer.compressed for layer in cache.compressed_layers())
