"""Decoding over a compressed cache: the same tokens as ``generate``, and likelihoods that are right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from helpers.tiny_models import (
    VOCAB,
    bound,
    build,
    close,
    forward,
    generate,
    one_by_one,
    prompt,
    session,
    snapshot,
    text_ids,
    tiny,
)
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.decode import end_tokens, greedy, teacher_forced, tokens_per_second
from kvfw.model.session.attach import attach

LENGTH, NEW = 90, 16
MIX = "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2"


def nll_of(model: PreTrainedModel, cache: CompressedCache, tokens: Sequence[int]) -> tuple[float, ...]:
    return teacher_forced(model, cache, tokens).nll


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_greedy_over_the_full_cache_equals_generate(name: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    taken = snapshot(model, ids, bound("streaming"))
    assert greedy(model, taken.full(), taken.logits, NEW) == tuple(generate(model, ids, NEW)[0].tolist())


def test_greedy_ignores_what_generate_does_to_logits() -> None:
    # A repetition penalty is a setting of generate; decoding here takes the argmax of the raw logits.
    model, ids = build("llama"), prompt(LENGTH)
    taken = snapshot(model, ids, bound("streaming"))
    raw = greedy(model, taken.full(), taken.logits, NEW)
    penalised = generate(model, ids, NEW, repetition_penalty=5.0)
    assert raw != tuple(penalised[0].tolist())
    assert raw == tuple(generate(model, ids, NEW, repetition_penalty=1.0)[0].tolist())


@pytest.mark.parametrize("several", [False, True], ids=["one", "list"])
def test_decoding_stops_at_any_end_token(several: bool) -> None:
    model: Any = build("llama")
    ids = prompt(LENGTH)
    by = bound(MIX)
    taken = snapshot(model, ids, by)
    free = greedy(model, taken.compressed(by), taken.logits, NEW)
    assert end_tokens(model) == frozenset()
    end = free[5]
    assert end not in free[:5]
    model.generation_config.eos_token_id = [1, end] if several else end
    assert end_tokens(model) == (frozenset({1, end}) if several else frozenset({end}))
    stopped = greedy(model, taken.compressed(by), taken.logits, NEW)
    # The end token itself belongs to the response.
    assert stopped == free[:6]
    with attach(model, MIX, ratio=4, sinks=4, recent=8) as cache:
        assert tuple(generate(model, ids, NEW, cache=cache)[0].tolist()) == stopped


def test_a_prompt_that_ends_at_once() -> None:
    model: Any = build("llama")
    taken = snapshot(model, prompt(LENGTH), bound("streaming"))
    first = int(taken.logits.argmax())
    model.generation_config.eos_token_id = first
    assert greedy(model, taken.full(), taken.logits, NEW) == (first,)
    model.generation_config = None
    assert len(greedy(model, taken.full(), taken.logits, 3)) == 3


@pytest.mark.parametrize(
    ("name", "composition"),
    [("llama", "streaming"), ("llama", "merge(merger=ewmeans(iters=2),weight=snapkv,bias=log)"), ("gemma3", MIX)],
)
def test_likelihoods_equal_those_taken_token_by_token(name: str, composition: str) -> None:
    model = tiny(name)
    by = bound(composition)
    taken = snapshot(model, prompt(LENGTH), by)
    tokens = prompt(12, seed=2)
    logits = one_by_one(model, tokens[:, :-1], taken.compressed(by))[0].double()
    expected = -logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    ours = nll_of(model, taken.compressed(by), tokens[0].tolist())
    close(torch.tensor(ours, dtype=torch.float64), expected)
    assert len(ours) == 11
    full = nll_of(model, taken.full(), tokens[0].tolist())
    # The compressed cache says something else than the full one, or the check compares nothing.
    assert max(abs(a - b) for a, b in zip(ours, full, strict=True)) > 1e-3


def test_likelihoods_of_the_full_cache_are_the_models_own() -> None:
    model, ids, tokens = tiny("llama"), prompt(LENGTH), prompt(12, seed=2)
    with torch.inference_mode():
        logits = model(input_ids=torch.cat((ids, tokens), dim=1)).logits[0, LENGTH:-1]
    expected = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
    taken = snapshot(model, ids, bound("streaming"))
    close(torch.tensor(nll_of(model, taken.full(), tokens[0].tolist())), expected)


def test_one_token_has_no_likelihood() -> None:
    taken = snapshot(tiny("llama"), prompt(LENGTH), bound("streaming"))
    cache = taken.full()
    assert nll_of(tiny("llama"), cache, [3]) == ()
    assert cache.get_seq_length() == LENGTH


def test_speed_is_measured_over_the_steps_asked_for() -> None:
    model: Any = build("llama")
    by = bound(MIX)
    taken = snapshot(model, prompt(LENGTH), by)
    # End tokens do not stop the clock.
    model.generation_config.eos_token_id = list(range(VOCAB))
    cache = taken.compressed(by)
    assert tokens_per_second(model, cache, taken.logits, steps=4, warmup=1) > 0
    assert cache.get_seq_length() == LENGTH + 5


def test_hidden_states_are_available_while_decoding() -> None:
    model = tiny("llama")
    by = bound(MIX, ratio=1)
    ids, tokens = prompt(LENGTH), prompt(5, seed=2)
    cache = snapshot(model, ids, by).compressed(by)
    with session(model, cache):
        attached = model(input_ids=tokens, **passed(model, cache), output_hidden_states=True).hidden_states
    with torch.inference_mode():
        plain = model(input_ids=torch.cat((ids, tokens), dim=1), output_hidden_states=True).hidden_states
    assert len(attached) == len(plain) == 4
    for ours, theirs in zip(attached, plain, strict=True):
        close(ours, theirs[:, LENGTH:])


def test_decoding_outside_a_session_gives_the_same() -> None:
    model = tiny("llama")
    by = bound("streaming")
    taken = snapshot(model, prompt(LENGTH), by)
    tokens = greedy(model, taken.compressed(by), taken.logits, 6)
    cache = taken.compressed(by)
    with torch.inference_mode():
        for now, then in itertools.pairwise(tokens):
            assert int(forward(model, torch.tensor([[now]]), cache)[0, -1].argmax()) == then


@pytest.mark.real
def test_likelihoods_of_real_text(smollm: LoadedModel) -> None:
    model, ids = smollm.model, text_ids(smollm, 320)
    prompt_ids, tokens = ids[:, :288], ids[0, 288:].tolist()
    by = bound("snapkv(window=32)", ratio=1, recent=16)
    taken = snapshot(model, prompt_ids, by)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, 288:-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
    # Float32 through 30 layers; measured 3e-5 on logits of size 30.
    close(torch.tensor(nll_of(model, taken.compressed(by), tokens)), expected, atol=2e-4)
    means = [float(expected.mean())]
    for ratio in (8, 64):
        smaller = bound("snapkv(window=32)", ratio=ratio, recent=16)
        nll = nll_of(model, taken.compressed(smaller), tokens)
        means.append(sum(nll) / len(nll))
    # Mild compression costs little, where a wrong mask or wrong positions would cost whole nats; severe does cost.
    assert abs(means[1] - means[0]) < 0.5
    assert means[2] > means[0]
