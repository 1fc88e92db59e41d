"""After ``attach`` a model is what it was before, whatever happened inside."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from helpers.tiny_models import bound, build, forward, generate, prompt, same_bits, snapshot, tiny
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.compat.versions import passed
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH = 90


def wiring(model: PreTrainedModel) -> tuple[list[Any], list[str], list[str]]:
    """Everything that routing attention touches: configurations and the names transformers knows."""
    configs = [m.config._attn_implementation for m in model.modules() if isinstance(m, PreTrainedModel)]
    return configs, sorted(AttentionInterface()), sorted(AttentionMaskInterface())


def logits_of(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=prompt(40, seed=9)).logits
    return logits


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "dynamic"])
def test_the_model_is_bit_for_bit_what_it_was(name: str, attention: str) -> None:
    model = build(name, attention=attention)
    before, expected = wiring(model), logits_of(model)
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    with attach(model, "snapkv(window=8)", ratio=4, **PROTECTED) as cache:
        assert wiring(model) != before
        generate(model, prompt(50), 4, cache=cache)
    assert wiring(model) == before
    assert torch.equal(logits_of(model), expected)
    assert not any("kvfw" in key for key in before[1] + before[2])
    for key, value in model.named_buffers():
        assert torch.equal(value, buffers[key]), key


def test_looking_at_a_model_leaves_its_frequencies_alone() -> None:
    # A dynamic rotary module recomputes its frequencies whenever it is called; kvfw's probe must not make it do so.
    model = build("dynamic")
    with torch.inference_mode():
        model(input_ids=prompt(100))
    grown = {key: value.clone() for key, value in model.named_buffers()}
    with attach(model, "streaming", ratio=4, **PROTECTED):
        pass
    assert all(torch.equal(value, grown[key]) for key, value in model.named_buffers())


def test_an_exception_inside_restores() -> None:
    model = build("llama")
    before, expected = wiring(model), logits_of(model)
    with pytest.raises(KeyError), attach(model, "streaming", ratio=4, **PROTECTED):
        raise KeyError
    assert wiring(model) == before
    # One from within a layer's attention: the prompt has a middle but its budget is 0 slots.
    with pytest.raises(BudgetError), attach(model, "streaming", ratio=1000, **PROTECTED) as cache:
        generate(model, prompt(LENGTH), 4, cache=cache)
    assert wiring(model) == before
    assert torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("headless", [False, True])
def test_a_model_is_not_copied_while_attached(copied: Callable[[Any], object], headless: bool) -> None:
    model: Any = build("llama")
    # A model without a head has no generate.
    model = model.model if headless else model
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache:
        model(input_ids=prompt(LENGTH), **passed(model, cache))
        with pytest.raises(UnsupportedError, match=r"cannot be copied or pickled inside kvfw\.attach"):
            copied(model)
    assert wiring(copy.deepcopy(model)) == wiring(model)


def test_nested_on_two_models() -> None:
    first, second = build("llama"), build("qwen3")
    before = wiring(first), wiring(second)
    expected = [snapshot(m, prompt(LENGTH), bound("snapkv(window=8)")) for m in (first, second)]
    with attach(first, "snapkv(window=8)", ratio=4, **PROTECTED) as one:
        with attach(second, "snapkv(window=8)", ratio=4, **PROTECTED) as two, torch.inference_mode():
            forward(first, prompt(LENGTH), one)
            forward(second, prompt(LENGTH), two)
        assert wiring(second)[0] == before[1][0]
        assert wiring(first)[0] != before[0][0]
    assert (wiring(first), wiring(second)) == before
    for cache, taken in zip((one, two), expected, strict=True):
        states = taken.compressed_states(bound("snapkv(window=8)"))
        assert all(same_bits(cache.state(i), states[i]) for i in range(3))


def test_nested_on_one_model() -> None:
    model = build("llama")
    before, expected = wiring(model), logits_of(model)
    with attach(model, "snapkv(window=8)", ratio=4, **PROTECTED) as outer:
        with attach(model, "ewmeans_pre(iters=2)", ratio=8, **PROTECTED) as inner, torch.inference_mode():
            forward(model, prompt(LENGTH), inner)
            forward(model, prompt(LENGTH), outer)
            assert torch.equal(logits_of(model), expected)
        tokens = generate(model, torch.cat((prompt(LENGTH), prompt(1, seed=4)), dim=1), 6, cache=outer)
    assert wiring(model) == before
    assert torch.equal(logits_of(model), expected)
    for cache, composition, ratio in ((outer, "snapkv(window=8)", 4), (inner, "ewmeans_pre(iters=2)", 8)):
        by = bound(composition, ratio=ratio)
        states = snapshot(model, prompt(LENGTH), by).compressed_states(by)
        width = states[0].width
        assert all(torch.equal(cache.state(i).keys[:, :, :width], states[i].keys) for i in range(3))
    with attach(model, "snapkv(window=8)", ratio=4, **PROTECTED) as alone, torch.inference_mode():
        forward(model, prompt(LENGTH), alone)
        again = generate(model, torch.cat((prompt(LENGTH), prompt(1, seed=4)), dim=1), 6, cache=alone)
    assert torch.equal(tokens, again)


def test_another_cache_inside_attach_is_left_alone() -> None:
    model = tiny("llama")
    plain = generate(model, prompt(LENGTH), 6)
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache:
        assert torch.equal(generate(model, prompt(LENGTH), 6), plain)
    assert cache.report().kv_bytes == 0


def test_hooks_of_the_model_see_its_own_forwards_only() -> None:
    model = build("llama")
    calls: list[int] = []
    for i, module in enumerate(m for m in model.modules() if type(m).__name__ == "LlamaAttention"):
        module.register_forward_hook(lambda *_, i=i: calls.append(i))
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
    assert calls == [0, 1, 2]
