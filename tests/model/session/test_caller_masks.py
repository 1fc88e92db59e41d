"""Masks that hide tokens of the cache: honoured as a DynamicCache honours them, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from helpers.tiny_models import close, forward, prompt, tiny
from kvfw.errors import PromptError, UnsupportedError
from kvfw.model.compat.versions import passed
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 60, 5


def hiding(hidden: slice, *, length: int = LENGTH, new: int = NEW) -> dict[str, Tensor]:
    """A mask over all tokens that hides some of the first ones, and positions that go on."""
    mask = torch.ones(1, length + new, dtype=torch.int64)
    mask[:, hidden] = 0
    return {"attention_mask": mask, "position_ids": torch.arange(length, length + new)[None]}


def reference(model: PreTrainedModel, ids: Tensor, first: dict[str, Tensor], *turns: tuple[Tensor, Any]) -> Tensor:
    """Logits of the last turn over transformers' own cache."""
    untyped: Any = model
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.inference_mode():
        logits: Tensor = untyped(input_ids=ids, **passed(model, cache), **first).logits
        for turn, options in turns:
            logits = untyped(input_ids=turn, **passed(model, cache), **options).logits
    return logits


@pytest.mark.parametrize("composition", ["snapkv", "h2o"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_hidden_tokens_are_hidden_as_in_a_dynamic_cache(name: str, composition: str) -> None:
    model, ids, turn = tiny(name), prompt(LENGTH), prompt(NEW, seed=2)
    options = hiding(slice(20, 33))
    later = {"attention_mask": torch.cat((options["attention_mask"], torch.ones(1, 1, dtype=torch.int64)), dim=1)}
    with attach(model, composition, ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
        logits = forward(model, turn, cache, **options)
        step = forward(model, prompt(1, seed=3), cache, **later)
    assert all(layer.state.width == LENGTH + NEW + 1 - 13 for layer in cache.compressed_layers())
    close(logits, reference(model, ids, {}, (turn, options)))
    close(step, reference(model, ids, {}, (turn, options), (prompt(1, seed=3), later)))


def test_tokens_that_were_dropped_already_may_be_hidden() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    logits = []
    for options in ({}, hiding(slice(20, 33))):
        with attach(model, "streaming", ratio=40, **PROTECTED) as cache, torch.inference_mode():
            forward(model, ids, cache)
            logits.append(forward(model, prompt(NEW, seed=2), cache, **options))
    assert torch.equal(*logits)


def test_tokens_may_be_hidden_before_the_prompt_is_over() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    options = hiding(slice(10, 20), length=40, new=20)
    with attach(model, "snapkv", ratio=1, prompt_tokens=LENGTH, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids[:, :40], cache)
        logits = forward(model, ids[:, 40:], cache, **options)
    close(logits, reference(model, ids[:, :40], {}, (ids[:, 40:], options)))
    assert cache.state(0).valid.sum(-1).tolist() == [[LENGTH - 10] * 2]


def test_queries_of_hidden_tokens_are_none_for_later_compressions() -> None:
    model, options = tiny("llama"), {"ratio": 1, "compress_every": 50, **PROTECTED}
    with attach(model, "snapkv(window=16)", **options) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        forward(model, prompt(NEW, seed=2), cache, **hiding(slice(50, 55)))
    seen = {float(at) for at in (*range(LENGTH + NEW - 16, 50), *range(55, LENGTH + NEW))}
    for layer in cache.compressed_layers():
        assert layer.captured.query_positions is not None
        assert {at for at in layer.captured.query_positions[0].tolist() if at >= 0} == seen


def test_a_mask_that_hides_nothing_new_leaves_the_slots_alone() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
        before = [layer.storage for layer in cache.compressed_layers()]
        forward(model, prompt(NEW, seed=2), cache, **hiding(slice(0, 0)))
    assert all(layer.storage is held for layer, held in zip(cache.compressed_layers(), before, strict=True))


def test_a_row_that_ended_early_goes_on_as_in_a_fresh_run() -> None:
    # generate goes on feeding padding to a row that has ended; the next turn's mask hides it.
    model, ids, answer = tiny("llama"), prompt(LENGTH, rows=2), prompt(6, seed=2, rows=2)
    turn = prompt(NEW, seed=3, rows=2)
    mask = torch.ones(2, LENGTH + 6 + NEW, dtype=torch.int64)
    mask[0, LENGTH + 2 : LENGTH + 6] = 0
    options = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1)[:, -NEW:]}
    with attach(model, "snapkv", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
        for step in torch.split(answer, 1, dim=1):
            forward(model, step, cache)
        logits = forward(model, turn, cache, **options)
    assert cache.compressed_layers()[0].captured.tokens.tolist() == [LENGTH + 2 + NEW, LENGTH + 6 + NEW]
    alone = torch.cat((ids[:1], answer[:1, :2], turn[:1]), dim=1)
    close(logits[:1], reference(model, alone, {})[:, -NEW:])
    close(logits[1:], reference(model, torch.cat((ids, answer, turn), dim=1)[1:], {})[:, -NEW:])


@pytest.mark.parametrize(
    ("composition", "words"),
    [("ewmeans_pre(iters=2)", "may have been merged"), ("streaming(positions=cache)", "no longer be told")],
)
def test_tokens_that_have_no_slot_of_their_own_are_refused(composition: str, words: str) -> None:
    model = tiny("llama")
    with attach(model, composition, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        before = cache.state(0)
        with pytest.raises(UnsupportedError, match=f"the attention mask hides tokens .*{words}"):
            forward(model, prompt(NEW, seed=2), cache, **hiding(slice(20, 33)))
        # Nothing was changed, so that the right mask may follow.
        assert cache.state(0) is before
        forward(model, prompt(NEW, seed=2), cache)


def test_tokens_once_hidden_are_not_shown_again() -> None:
    model = tiny("llama")
    with attach(model, "snapkv", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        forward(model, prompt(NEW, seed=2), cache.copy(), **hiding(slice(20, 33)))
        forward(model, prompt(NEW, seed=2), cache, **hiding(slice(21, 33)))
        with pytest.raises(UnsupportedError, match=r"shows tokens .* hidden.*cache\.copy\(\)"):
            forward(model, prompt(NEW, seed=2), cache, **hiding(slice(0, 0), length=LENGTH + NEW))


def test_positions_made_from_a_mask_with_gaps_are_refused_with_the_way_out() -> None:
    model, options = tiny("llama"), hiding(slice(20, 33))
    options["position_ids"] = (options["attention_mask"].cumsum(1) - 1)[:, -NEW:]
    with attach(model, "snapkv", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        with pytest.raises(PromptError, match="after a mask that hides earlier tokens, position_ids that go on"):
            forward(model, prompt(NEW, seed=2), cache, **options)


def test_a_cache_whose_tokens_are_not_known_refuses_a_mask_that_hides_some() -> None:
    model = tiny("llama")
    with attach(model, "snapkv", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        first = cache.compressed_layers()[0]
        first.captured = replace(first.captured, seen_at=None)
        forward(model, prompt(NEW, seed=2), cache, **hiding(slice(0, 0)))
        with pytest.raises(UnsupportedError, match="the attention mask hides tokens"):
            forward(model, prompt(NEW, seed=2), cache, **hiding(slice(20, 33), length=LENGTH + NEW))


@pytest.mark.parametrize("seen", [0, LENGTH])
def test_a_mask_of_four_dimensions_is_refused(seen: int) -> None:
    model = tiny("llama")
    tree = torch.zeros(1, 1, 3, seen + 3).masked_fill(torch.eye(3, seen + 3)[None, None] > 0, -torch.inf)
    with attach(model, "snapkv", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        if seen:
            forward(model, prompt(seen), cache)
        with pytest.raises(UnsupportedError, match="an attention mask of 4 dimensions"):
            forward(model, prompt(3), cache, attention_mask=tree)
        if not seen:
            forward(model, prompt(LENGTH), cache)
