"""Compression while decoding: a bounded cache, and scores made of what really happened in every step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import Ragged, build, close, forward, generate, kept, prompt, same_bits, tiny
from kvfw.core.ops.attention import window_attention
from kvfw.core.state.observation import Observation
from kvfw.errors import BudgetError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH = 60
MIX = "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2"
MERGED_SUMS = "h2o:0.5+ewmeans_post(iters=2,weight=h2o):0.5"
COMPOSITIONS = (
    "streaming",
    "streaming(positions=cache)",
    "h2o",
    "h2o(norm=none,local=2)",
    "snapkv(window=8)",
    MIX,
    MERGED_SUMS,
    "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv(window=8),bias=log)",
)


def decoded(model: Any, cache: CompressedCache, steps: int, ids: Tensor) -> list[list[int]]:
    """Slots of every compressed layer after the prompt and after each of ``steps`` single tokens."""
    with torch.inference_mode():
        forward(model, ids, cache)
        widths = [[layer.stored for layer in cache.compressed_layers()]]
        for step in range(steps):
            forward(model, prompt(1, seed=100 + step, rows=ids.shape[0]), cache)
            widths.append([layer.stored for layer in cache.compressed_layers()])
    return widths


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_the_cache_stays_within_its_slots(composition: str) -> None:
    model = tiny("llama")
    with attach(model, composition, slots=30, compress_every=7, **PROTECTED) as cache:
        widths = decoded(model, cache, 30, prompt(LENGTH))
    assert widths == [[30 + step % 7] * 3 for step in range(31)]
    seen = LENGTH + 30
    for layer in cache.compressed_layers():
        state = layer.state
        assert bool((state.positions.diff(dim=-1) >= 0).all())
        assert state.positions[0, :, -10:].tolist() == [list(range(seen - 10, seen))] * 2
        if "merge" in composition or "ewmeans" in composition:
            assert state.mass.sum(-1).tolist() == [[seen, seen]]
        if composition != "streaming(positions=cache)":
            assert state.positions[0, :, :4].tolist() == [[0, 1, 2, 3]] * 2


def test_two_thousand_tokens_hold_the_bytes_of_few() -> None:
    model = build("llama", num_hidden_layers=1)
    with attach(model, "h2o", slots=48, compress_every=32, **PROTECTED) as cache:
        widths = decoded(model, cache, 2000, prompt(LENGTH))
    assert max(width for (width,) in widths) == 48 + 31
    assert cache.get_seq_length() == LENGTH + 2000
    assert cache.report().kv_bytes == (48 + 2000 % 32) * 2 * (16 + 16) * 4


@pytest.mark.parametrize(("amount", "slots"), [({"ratio": 4}, 24), ({"keep": "1/2"}, 36)])
def test_a_ratio_is_that_of_the_prompt(amount: dict[str, Any], slots: int) -> None:
    model = tiny("llama")
    with attach(model, "snapkv(window=8)", compress_every=5, **amount, **PROTECTED) as cache:
        widths = decoded(model, cache, 25, prompt(LENGTH))
    assert {width for row in widths for width in row} == set(range(slots, slots + 5))


def test_slots_above_the_prompt_are_filled_while_decoding() -> None:
    model = tiny("llama")
    with attach(model, "snapkv(window=8)", slots=80, compress_every=10, **PROTECTED) as cache:
        widths = [row[0] for row in decoded(model, cache, 60, prompt(LENGTH))]
    assert widths[0] == LENGTH
    assert max(widths) == 89
    assert widths[-1] == 80
    with attach(model, "snapkv(window=8)", slots=30, compress_every=10, **PROTECTED) as cache:
        short = [row[0] for row in decoded(model, cache, 60, prompt(5))]
    assert short[0] == 5
    assert max(short) == 39


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "qwen3"])
def test_other_architectures_and_uneven_budgets(name: str) -> None:
    model = tiny(name)
    with attach(model, "h2o", slots=30, compress_every=6, allocator=Ragged(), **PROTECTED) as cache:
        decoded(model, cache, 18, prompt(LENGTH))
    slots = [n for layer in cache.report().layers if layer.compressed for n in layer.slots]
    assert sum(slots) == 30 * len(slots)
    assert len(set(slots)) > 1


def test_long_forwards_count_as_many_tokens() -> None:
    # Without recompress a turn is just more tokens: it is compressed where it is as long as the stretch asked for.
    model = tiny("llama")
    with attach(model, "streaming", slots=30, compress_every=16, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        forward(model, prompt(15), cache)
        assert cache.state(0).width == 45
        forward(model, prompt(40), cache)
        assert cache.state(0).width == 30


# --- scores of what really happened ----------------------------------------------------------------------


def eager_attention(ids: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        attentions: tuple[Tensor, ...] = tiny("llama", "eager")(ids, output_attentions=True, use_cache=False).attentions
    return attentions


def response(steps: int) -> Tensor:
    return torch.cat([prompt(1, seed=100 + step) for step in range(steps)], dim=1)


def test_column_sums_add_up_over_decoding_steps() -> None:
    # 200 slots evict nothing, so that the whole matrix of eager attention is what was added up step by step.
    model, steps = tiny("llama"), 21
    with attach(model, "h2o", slots=200, compress_every=6, **PROTECTED) as cache:
        decoded(model, cache, steps, prompt(LENGTH))
    for layer, attention in zip(
        cache.compressed_layers(), eager_attention(torch.cat((prompt(LENGTH), response(steps)), dim=1)), strict=True
    ):
        expected = attention[0].sum(1).view(2, 2, -1).mean(1)
        close(layer.captured.sums[0][0], expected, atol=5e-4)


def test_snapkv_scores_with_each_query_at_its_own_position(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is evicted before the event that is looked at: its window attention is that of the whole matrix.
    seen: list[Observation] = []

    def spy(obs: Observation) -> Tensor:
        seen.append(obs)
        return window_attention(obs)

    monkeypatch.setattr("kvfw.methods.scorers.snapkv.window_attention", spy)
    model, steps = tiny("llama"), 14
    with attach(model, "snapkv(window=8)", slots=LENGTH, compress_every=steps, **PROTECTED) as cache:
        decoded(model, cache, steps, prompt(LENGTH))
    assert [obs.layer for obs in seen] == [0, 1, 2]
    end = LENGTH + steps
    for obs, attention in zip(seen, eager_attention(torch.cat((prompt(LENGTH), response(steps)), dim=1)), strict=True):
        assert obs.window()[1].tolist() == [list(range(end - 8, end))]
        expected = attention[0, :, -8:].mean(1).view(2, 2, -1).mean(1)
        close(window_attention(obs)[0], expected)
        one_position = window_attention(
            Observation(
                state=obs.state,
                protected=obs.protected,
                scale=obs.scale,
                layer=obs.layer,
                queries=obs.window()[0],
                query_positions=torch.full((1, 8), float(end - 1)),
            )
        )
        # The trap: with all queries at the last position, earlier ones see the future.
        assert float((one_position[0] - expected).abs().max()) > 1e-3


def slow_h2o(attention_of: Any, slots: int, every: int, steps: int) -> list[list[int]]:
    """Positions each head keeps, by greedy eviction with running sums, from a function that gives one query's row."""
    heads = []
    for head in range(2):
        present = list(range(LENGTH))
        sums = dict.fromkeys(range(LENGTH + steps), 0.0)
        since = 0
        for query in range(LENGTH + steps):
            if query >= LENGTH:
                present.append(query)
                since += 1
            visible = [p for p in present if p <= query]
            for p, weight in zip(visible, attention_of(head, query, visible), strict=True):
                sums[p] += weight
            if query == LENGTH - 1 or since == every:
                since = 0
                middle = present[4:-8]
                order = sorted(middle, key=lambda p: (-sums[p], p))[: slots - 12]
                present = [*present[:4], *sorted(order), *present[-8:]]
        heads.append(present)
    return heads


def test_h2o_evicts_by_running_sums_like_a_slow_reference() -> None:
    # One layer, so that queries and keys do not depend on what was evicted and the reference can know them.
    model, steps, every, slots = build("llama", num_hidden_layers=1), 24, 4, 28
    ids = torch.cat((prompt(LENGTH), response(steps)), dim=1)
    whole = attach(model, "h2o(norm=none)", ratio=1, compress_every=1000, **PROTECTED)
    captured: list[Tensor] = []
    with whole as full, torch.inference_mode():
        layer = model.model.layers[0]
        hidden = layer.input_layernorm(model.model.embed_tokens(ids))
        forward(model, ids, full)
        keys = full.state(0).keys[0]
        query = layer.self_attn.q_proj(hidden).view(1, -1, 4, 16).transpose(1, 2)
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        cos, sin = model.model.rotary_emb(hidden, torch.arange(ids.shape[1])[None])
        captured.append(apply_rotary_pos_emb(query, query, cos, sin)[0][0])

    def attention_of(head: int, at: int, visible: list[int]) -> list[float]:
        logits = captured[0][2 * head : 2 * head + 2, at].double() @ keys[head, visible].double().T * 16**-0.5
        found: list[float] = logits.softmax(-1).mean(0).tolist()
        return found

    expected = slow_h2o(attention_of, slots, every, steps)
    with attach(model, "h2o(norm=none)", slots=slots, compress_every=every, **PROTECTED) as cache:
        decoded(model, cache, steps, prompt(LENGTH))
    assert [kept(cache.state(0), 0, head) for head in range(2)] == expected
    # Sums that start anew at every eviction keep other tokens, so the reference can tell.
    with attach(model, "h2o(norm=none)", slots=slots, compress_every=every, **PROTECTED) as cache:
        forgetful = iter(range(10**6))
        with torch.inference_mode():
            forward(model, ids[:, :LENGTH], cache)
            for step in range(steps):
                if next(forgetful) % every == 0:
                    layer = cache.compressed_layers()[0]
                    zeros = {n: torch.zeros_like(s) for n, s in layer.captured.sums.items()}
                    layer.captured = replace(layer.captured, sums=zeros)
                forward(model, ids[:, LENGTH + step : LENGTH + step + 1], cache)
    assert [kept(cache.state(0), 0, head) for head in range(2)] != expected


def test_merging_divides_sums_and_loses_none() -> None:
    model = tiny("llama")
    with attach(model, MERGED_SUMS, slots=30, compress_every=5, **PROTECTED) as cache:
        decoded(model, cache, 20, prompt(LENGTH))
    for layer in cache.compressed_layers():
        close(layer.captured.sums[0].sum(-1), torch.full((1, 2), float(LENGTH + 20)))
        assert bool((layer.captured.sums[0] >= 0).all())


# --- batches, beams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("composition", ["h2o", "snapkv(window=8)"])
def test_a_padded_batch_decodes_like_each_prompt_alone(composition: str) -> None:
    model, lengths = tiny("llama"), (60, 41)
    ids = torch.zeros(2, 60, dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, 60 - length :] = prompt(length, seed=row)
    options: dict[str, Any] = {"slots": 24, "compress_every": 6, **PROTECTED}
    with attach(model, composition, **options) as cache:
        both = generate(model, ids, 20, cache=cache, attention_mask=(ids != 0).long())
    for row, length in enumerate(lengths):
        with attach(model, composition, **options) as alone:
            assert torch.equal(generate(model, prompt(length, seed=row), 20, cache=alone)[0], both[row])
        for i in range(3):
            assert torch.equal(cache.state(i).positions[row], alone.state(i).positions[0])


def test_sums_and_budgets_follow_the_beams() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    options: dict[str, Any] = {"slots": 30, "compress_every": 4, **PROTECTED}
    with attach(model, "h2o", **options) as cache:
        best = generate(model, ids, 14, cache=cache, num_beams=3, num_return_sequences=3)
    # The last tokens of a beam are not in the cache: 12 steps are compressed for certain.
    with attach(model, "h2o", **options) as alone, torch.inference_mode():
        forward(model, ids, alone)
        for token in best[0, :12]:
            forward(model, token.view(1, 1), alone)
    rows = [cache.state(0).positions[row, :, :30] for row in range(3)]
    assert any(torch.equal(row, alone.state(0).positions[0]) for row in rows)


# --- blocks one after another ----------------------------------------------------------------------------

#: Where tokens are read that no block captures: outside any block, or in one that does not need to.
GAPS: dict[str, dict[str, Any] | None] = {
    "outside": None,
    "without_composition": {},
    "by_another_scorer": {"composition": "streaming", "slots": 24, "recompress": True, **PROTECTED},
}


def with_a_gap(composition: str, gap: dict[str, Any] | None, **options: Any) -> CompressedCache:
    """The cache of a prompt of ``LENGTH`` tokens and of 8 more that no block captures."""
    model = tiny("llama")
    with attach(model, composition, **options, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
    with nullcontext() if gap is None else attach(model, cache=cache, **gap), torch.inference_mode():
        for step in range(8):
            forward(model, prompt(1, seed=step), cache)
    return cache


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_queries_from_before_a_gap_are_forgotten(gap: dict[str, Any] | None) -> None:
    options: dict[str, Any] = {"slots": 24, "compress_every": 12}
    cache = with_a_gap("snapkv(window=6)", gap, **options)
    with attach(tiny("llama"), "snapkv(window=6)", cache=cache, **options, **PROTECTED), torch.inference_mode():
        forward(tiny("llama"), prompt(4, seed=9), cache)
    for layer in cache.compressed_layers():
        assert layer.captured.compressed_at == LENGTH + 12
        assert layer.captured.query_positions is not None
        assert layer.captured.query_positions.tolist() == [[float(LENGTH + i) for i in range(8, 12)]]


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("again", [{"recompress": True}, {"compress_every": 12}], ids=str)
def test_sums_with_a_gap_are_refused(again: dict[str, Any], gap: dict[str, Any] | None) -> None:
    cache = with_a_gap("h2o", gap, slots=24, **again)
    with (
        pytest.raises(UnsupportedError, match=r"counted from the prompt on, .* or ran outside a block since"),
        attach(tiny("llama"), "h2o", cache=cache, slots=24, **again, **PROTECTED),
    ):
        pytest.fail("attached")


# --- what is refused, what is left as it was -------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_compress_every_is_a_number_of_tokens(value: Any) -> None:
    with (
        pytest.raises(BudgetError, match="compress_every is"),
        attach(tiny("llama"), "streaming", slots=30, compress_every=value, **PROTECTED),
    ):
        pytest.fail("attached")


def test_slots_for_sinks_and_recent_tokens_only_are_refused_at_once() -> None:
    with (
        pytest.raises(BudgetError, match="at least 13 slots"),
        attach(tiny("llama"), "streaming", slots=12, compress_every=4, **PROTECTED),
    ):
        pytest.fail("attached")


@pytest.mark.parametrize(
    ("composition", "words"),
    [("pinned", "lexical features"), ("select(scorer=h2o,positions=cache)", "positions=cache")],
)
@pytest.mark.parametrize("later", [{"compress_every": 4}, {"recompress": True}])
def test_what_cannot_be_done_is_refused_by_name(composition: str, words: str, later: dict[str, Any]) -> None:
    untyped: Any = SimpleNamespace(all_special_ids=[], convert_ids_to_tokens=list)
    with (
        pytest.raises(UnsupportedError, match=f"{next(iter(later))}.*{words}"),
        attach(tiny("llama"), composition, slots=30, tokenizer=untyped, **later, **PROTECTED),
    ):
        pytest.fail("attached")


def test_a_ratio_of_a_prompt_without_a_middle_is_refused() -> None:
    model = tiny("llama")
    with (
        attach(model, "streaming", ratio=4, compress_every=4, **PROTECTED) as cache,
        pytest.raises(BudgetError, match="Say slots="),
    ):
        generate(model, prompt(10), 3, cache=cache)


def test_without_it_nothing_is_kept_for_later() -> None:
    model = tiny("llama")
    with attach(model, MERGED_SUMS, slots=30, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        first = cache.state(0)
        forward(model, prompt(40), cache)
        assert all(layer.captured.queries is None and not layer.captured.sums for layer in cache.compressed_layers())
    with attach(model, MERGED_SUMS, slots=30, compress_every=4, **PROTECTED) as other, torch.inference_mode():
        forward(model, prompt(LENGTH), other)
    assert same_bits(first, other.state(0))
