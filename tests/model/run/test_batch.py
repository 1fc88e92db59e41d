"""Decoding several caches as a batch gives what decoding each alone gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.tiny_models import bound, build, prompt, snapshot, text_ids, tiny
from kvfw.core.state.slots import stack
from kvfw.model.load.load import LoadedModel
from kvfw.model.run import batch as together
from kvfw.model.run.batch import can_decode_together, feed_together, greedy_together
from kvfw.model.run.decode import feed, greedy

LENGTH, NEW = 90, 16
COMPOSITIONS = (
    "streaming",
    "snapkv(window=16)",
    "uniform",
    "merge(merger=ewmeans(iters=2),weight=snapkv,bias=log)",
    "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2",
)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("ratios", [(4,) * 5, (2, 3, 4, 5, 6)], ids=["equal slots", "different slots"])
def test_a_batch_writes_what_its_rows_write_alone(name: str, ratios: tuple[int, ...]) -> None:
    model = tiny(name)
    texts = COMPOSITIONS if name != "gpt2" else ("streaming", "uniform")
    bys = [bound(text, ratio=ratio) for text, ratio in zip(texts, ratios, strict=False)]
    taken = snapshot(model, prompt(LENGTH), bys[1])
    states = [taken.compressed_states(by) for by in bys]
    alone = [greedy(model, taken.compressed(by), taken.logits, NEW) for by in bys]
    logits = taken.logits.expand(len(bys), -1)
    found = greedy_together(model, taken.cache_of(*states), logits, NEW)
    assert sum(tokens is not None for tokens in found) >= len(bys) - 1
    assert all(tokens is None or tokens == one for tokens, one in zip(found, alone, strict=True))


def test_rows_that_end_leave_and_the_others_go_on() -> None:
    model: Any = build("llama")
    bys = [bound(text) for text in COMPOSITIONS]
    taken = snapshot(model, prompt(LENGTH), bys[1])
    free = [greedy(model, taken.compressed(by), taken.logits, NEW) for by in bys]
    # An end token that some rows meet early, and others late or not at all.
    end = next(t for t in free[1][2:] if any(t not in tokens for tokens in free))
    model.generation_config.eos_token_id = end
    alone = [greedy(model, taken.compressed(by), taken.logits, NEW) for by in bys]
    assert len({len(tokens) for tokens in alone}) > 1
    cache = taken.cache_of(*(taken.compressed_states(by) for by in bys))
    found = greedy_together(model, cache, taken.logits.expand(len(bys), -1), NEW)
    assert all(tokens is None or tokens == one for tokens, one in zip(found, alone, strict=True))
    assert sum(tokens is not None for tokens in found) >= 4


def test_a_choice_that_rounding_could_have_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    by = bound("streaming")
    taken = snapshot(model, prompt(LENGTH), by)
    states = taken.compressed_states(by)
    tied = taken.logits.clone()
    tied[0, tied.argsort(descending=True)[0, 1]] = tied.max() - 1e-5
    logits = torch.cat((taken.logits, tied, taken.logits))
    found = greedy_together(model, taken.cache_of(states, states, states), logits, NEW)
    alone = greedy(model, taken.compressed(by), taken.logits, NEW)
    assert found == (alone, None, alone)
    # Logits that are the prompt's own were not rounded in a batch: the first choice is certain, however close.
    sure = greedy_together(model, taken.cache_of(states, states, states), logits, NEW, first_is_sure=True)
    assert sure == (alone, greedy(model, taken.compressed(by), tied, NEW), alone)
    monkeypatch.setattr(together, "SURE_GAP", {torch.float32: 1e6})
    assert greedy_together(model, taken.cache_of(states, states), logits[:2], NEW, first_is_sure=True) == (None, None)


def test_half_precision_is_not_decoded_together() -> None:
    assert can_decode_together(tiny("llama"))
    for dtype in (torch.bfloat16, torch.float16):
        model: Any = build("llama")
        assert not can_decode_together(model.to(dtype))


def test_where_rounding_can_move_a_logit_by_any_amount_nothing_is_decoded_together() -> None:
    experts: Any = build("llama")
    experts.config.num_local_experts = 4
    assert not can_decode_together(experts)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert not can_decode_together(tiny("llama"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert can_decode_together(tiny("llama"))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_question_fed_to_all_rows_is_the_one_fed_to_each(name: str) -> None:
    model, question = tiny(name), prompt(7, seed=3)[0].tolist()
    bys = [bound(text, ratio=ratio) for text, ratio in zip(COMPOSITIONS, (2, 3, 4, 5, 6), strict=True)]
    taken = snapshot(model, prompt(LENGTH), bys[1])
    cache = taken.cache_of(*(taken.compressed_states(by) for by in bys))
    logits = feed_together(model, cache, len(bys), question)
    for row, by in enumerate(bys):
        torch.testing.assert_close(
            logits[row : row + 1], feed(model, taken.compressed(by), question), atol=1e-4, rtol=0
        )


def test_stacked_states_keep_their_slots_and_say_what_is_empty() -> None:
    bys = [bound("streaming", ratio=ratio) for ratio in (2, 6)]
    taken = snapshot(tiny("llama"), prompt(LENGTH), bys[0])
    wide, narrow = (taken.compressed_states(by)[0] for by in bys)
    both = stack([wide, narrow])
    more = wide.width - narrow.width
    assert more > 0
    assert both.valid.sum(-1).tolist() == [[wide.width] * 2, [narrow.width] * 2]
    assert torch.equal(both.keys[1:, :, more:], narrow.keys)
    assert bool((both.positions[1, :, :more] == -1).all())
    assert bool((both.bias[1, :, :more] == -torch.inf).all())
    assert stack([wide]) is wide


@pytest.mark.real
def test_on_the_embedded_model_a_batch_writes_what_its_rows_write_alone(smollm: LoadedModel) -> None:
    model, new = smollm.model, 16
    texts = ("uniform", "streaming", "snapkv", "ewmeans_post", "ewmeans_pre", "snapkv:0.8+ewmeans_pre:0.2")
    bys = [bound(text, ratio=ratio, sinks=4, recent=84) for text in texts for ratio in (4, 8)]
    taken = snapshot(model, text_ids(smollm, 700), bys[4])
    alone = [greedy(model, taken.compressed(by), taken.logits, new) for by in bys]
    cache = taken.cache_of(*(taken.compressed_states(by) for by in bys))
    found = greedy_together(model, cache, taken.logits.expand(len(bys), -1), new)
    assert all(tokens is None or tokens == one for tokens, one in zip(found, alone, strict=True))
    assert sum(tokens is not None for tokens in found) >= len(bys) * 3 // 4


@pytest.mark.real
def test_rounding_in_a_batch_is_far_below_what_counts_as_sure(smollm: LoadedModel) -> None:
    model = smollm.model
    bys = [bound(text, ratio=4, sinks=4, recent=84) for text in ("uniform", "snapkv", "streaming", "ewmeans_pre")]
    taken = snapshot(model, text_ids(smollm, 700), bys[1])
    cache = taken.cache_of(*(taken.compressed_states(by) for by in bys))
    tokens = text_ids(smollm, 720)[0, 700:].tolist()
    worst, size = 0.0, 0.0
    caches = [taken.compressed(by) for by in bys]
    for token in tokens[:8]:
        batch = feed_together(model, cache, len(bys), [token])
        single = torch.cat([feed(model, one, [token]) for one in caches])
        worst, size = max(worst, float((batch - single).abs().max())), float(single.abs().max())
    assert 0 < worst < together.SURE_GAP[torch.float32] * size / 5
