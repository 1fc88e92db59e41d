"""``attach``: compression inside plain ``generate``, and that it is the same compression as on a snapshot."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.parts import strange_registry
from helpers.tiny_models import (
    Ragged,
    allocated,
    at_once,
    bound,
    build,
    close,
    forward,
    generate,
    prompt,
    same_bits,
    snapshot,
    text_ids,
    tiny,
)
from kvfw.core.compose.composition import parse
from kvfw.errors import BudgetError, SpecError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.decode import greedy
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 90, 16
COMPOSITIONS = (
    "snapkv(window=8)",
    "uniform",
    "streaming(positions=cache)",
    "ewmeans_post(iters=2)",
    "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2",
    "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv,bias=log)",
)
MIX = COMPOSITIONS[4]


def test_a_composition_runs_as_it_is() -> None:
    """Its stages are those that were parsed: names of another registry are not looked up again."""
    composition = parse("halves(by=options)", strange_registry())
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, composition, ratio=4, **PROTECTED) as cache:
        generate(model, ids, 1, cache=cache)
        assert int(cache.state(0).valid.sum(-1).max()) == 4 + 8 + (LENGTH - 4 - 8) // 4


# --- ratio 1 is the identity -----------------------------------------------------------------------------


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_ratio_1_generates_what_the_plain_model_does(composition: str) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    plain = generate(model, ids, NEW)
    with attach(model, composition, ratio=1, **PROTECTED) as cache:
        assert torch.equal(generate(model, ids, NEW, cache=cache), plain)


@pytest.mark.parametrize("name", ["mha", "qwen2", "qwen3", "gemma3", "cohere2", "exaone4", "glm4", "gpt2", "yarn"])
def test_ratio_1_is_the_identity_on_every_architecture(name: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    plain = generate(model, ids, NEW)
    with attach(model, COMPOSITIONS[4], ratio=1, **PROTECTED) as cache:
        assert torch.equal(generate(model, ids, NEW, cache=cache), plain)
    full = torch.cat((ids, plain), dim=1)
    with torch.inference_mode():
        expected = model(input_ids=full).logits[:, LENGTH:]
    by = bound(COMPOSITIONS[4], ratio=1)
    taken = snapshot(model, ids, by)
    # Float32; measured 5e-6 at most, of logits of size 10.
    close(at_once(model, plain, taken.compressed(by)), expected)
    close(at_once(model, plain, taken.full()), expected)
    assert greedy(model, taken.full(), taken.logits, NEW) == tuple(plain[0].tolist())


@pytest.mark.parametrize("composition", [*COMPOSITIONS, "h2o"])
def test_a_forward_with_gradients_keeps_the_same_slots(composition: str) -> None:
    """Models from transformers have them switched on; only ``generate`` switches them off."""
    model, ids = copy.deepcopy(tiny("llama")).requires_grad_(True), prompt(LENGTH)
    states = []
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), attach(model, composition, ratio=4, **PROTECTED) as cache:
            logits = model(input_ids=ids, **passed(model, cache)).logits
        states.append(cache.state(0))
    assert not logits.requires_grad
    for part in ("keys", "values", "positions", "mass", "bias"):
        assert torch.equal(getattr(states[0], part), getattr(states[1], part))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_ratio_1_is_the_identity_in_half_precision(dtype: torch.dtype, atol: float) -> None:
    # Measured 0.08 in bfloat16 and 0.009 in float16, of logits of size 10.
    model, ids = build("llama"), prompt(LENGTH + NEW)
    model = model.bfloat16() if dtype is torch.bfloat16 else model.half()
    with torch.inference_mode():
        expected = model(input_ids=ids).logits[:, LENGTH:]
    by = bound(COMPOSITIONS[4], ratio=1)
    close(at_once(model, ids[:, LENGTH:], snapshot(model, ids[:, :LENGTH], by).compressed(by)), expected, atol)


# --- one compression, two ways to it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("composition", "ratio"), [*((composition, "4") for composition in COMPOSITIONS), (MIX, "1.5"), (MIX, "16")]
)
def test_attach_and_snapshot_give_the_same_states_and_tokens(composition: str, ratio: str) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    by = bound(composition, ratio=ratio)
    taken = snapshot(model, ids, by)
    with attach(model, composition, ratio=ratio, **PROTECTED) as cache:
        with torch.inference_mode():
            logits = forward(model, ids, cache, logits_to_keep=1)
        ours = taken.compressed(by)
        assert all(same_bits(cache.state(i), ours.state(i)) for i in range(3))
        assert torch.equal(logits[:, -1].float(), taken.logits)
    with attach(model, composition, ratio=ratio, **PROTECTED) as cache:
        tokens = generate(model, ids, NEW, cache=cache)[0].tolist()
    assert greedy(model, taken.compressed(by), taken.logits, NEW) == tuple(tokens)


def test_compression_changes_what_is_generated() -> None:
    # Otherwise the equalities above would hold for a cache that is never compressed.
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "streaming", ratio=16, **PROTECTED) as cache:
        assert not torch.equal(generate(model, ids, NEW, cache=cache), generate(model, ids, NEW))


def test_uneven_budgets_run_through_attach() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    composition = COMPOSITIONS[-1]
    with attach(model, composition, ratio=4, allocator=Ragged(), **PROTECTED) as cache:
        tokens = generate(model, ids, NEW, cache=cache)[0].tolist()
    by = bound(composition)
    taken = snapshot(model, ids, by)
    assert greedy(model, taken.compressed(allocated(by, Ragged())), taken.logits, NEW) == tuple(tokens)
    # The last token generated is never fed. Offsets of the six heads: -5, -3, -1, 1, 3, 5.
    budget = (LENGTH - 12) // 4
    slots = [layer.slots for layer in cache.report().layers]
    fixed = 12 + budget + NEW - 1
    assert slots == [(fixed - 5, fixed - 3), (fixed - 1, fixed + 1), (fixed + 3, fixed + 5)]


def test_every_way_to_say_the_amount() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    expected = {"ratio": 12 + (LENGTH - 12) // 3, "keep": 12 + (LENGTH - 12) // 10, "slots": 40}
    for kind, value in (("ratio", 3), ("keep", "0.1"), ("slots", 40)):
        amount: dict[str, Any] = {kind: value}
        with attach(model, "snapkv(window=8)", **amount, **PROTECTED) as cache:
            generate(model, ids, 1, cache=cache)
        assert {layer.slots for layer in cache.report().layers} == {(expected[kind],) * 2}


# --- padding ---------------------------------------------------------------------------------------------

LENGTHS = (60, 43, 52)


def padded_batch() -> tuple[Tensor, Tensor]:
    """Prompts of different lengths, padded on the left, and their mask."""
    width = max(LENGTHS)
    ids = torch.zeros(len(LENGTHS), width, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        ids[row, width - length :] = prompt(length, seed=row)
    return ids, (ids != 0).to(torch.int64)


@pytest.mark.parametrize(
    ("name", "composition"),
    [("llama", COMPOSITIONS[-1]), ("gemma3", "snapkv(window=16)"), ("gpt2", "snapkv(window=16)")],
)
def test_a_left_padded_batch_equals_one_at_a_time(name: str, composition: str) -> None:
    model = tiny(name)
    ids, mask = padded_batch()
    with attach(model, composition, ratio=4, **PROTECTED) as cache:
        batch = generate(model, ids, NEW, attention_mask=mask, cache=cache)
    layers = [i for i, sliding in enumerate(cache.is_sliding) if not sliding]
    for row, length in enumerate(LENGTHS):
        with attach(model, composition, ratio=4, **PROTECTED) as alone:
            assert torch.equal(generate(model, prompt(length, seed=row), NEW, cache=alone)[0], batch[row])
        for i in layers:
            ours, theirs = cache.state(i), alone.state(i)
            valid = ours.valid[row]
            # The padding is never kept: as many slots, of the same mass, at the same positions.
            assert valid.sum(-1).tolist() == theirs.valid[0].sum(-1).tolist()
            assert torch.equal(ours.mass[row][valid], theirs.mass[0].flatten())
            close(ours.positions[row][valid], theirs.positions[0].flatten())
            close(ours.keys[row][valid], theirs.keys[0].flatten(0, 1))
            close(ours.values[row][valid], theirs.values[0].flatten(0, 1))
            total = ours.mass[row].sum(-1)
            assert composition.startswith("snapkv") or total.tolist() == [length + NEW - 1] * len(total)


def test_a_padded_question_after_a_padded_prompt() -> None:
    model = tiny("llama")
    ids, mask = padded_batch()
    questions = [prompt(length, seed=10 + row) for row, length in enumerate((7, 9, 5))]
    width = 9
    question = torch.zeros(3, width, dtype=torch.int64)
    for row, own in enumerate(questions):
        question[row, width - own.shape[1] :] = own
    both = torch.cat((mask, (question != 0).to(torch.int64)), dim=1)
    positions = (both.cumsum(1) - 1).clamp(min=0)
    with attach(model, COMPOSITIONS[-1], ratio=4, **PROTECTED) as cache, torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, position_ids=positions[:, : ids.shape[1]], **passed(model, cache))
        logits = model(
            input_ids=question, attention_mask=both, position_ids=positions[:, ids.shape[1] :], **passed(model, cache)
        ).logits
    for row, own in enumerate(questions):
        with attach(model, COMPOSITIONS[-1], ratio=4, **PROTECTED) as alone, torch.inference_mode():
            forward(model, prompt(LENGTHS[row], seed=row), alone)
            expected = forward(model, own, alone)
        close(logits[row, width - own.shape[1] :], expected[0])
        assert int(cache.state(0).mass[row, 0].sum()) == LENGTHS[row] + own.shape[1]


def test_a_padded_batch_without_position_ids() -> None:
    # transformers then counts the padding: every position is that much later, and relative distances stay.
    model = tiny("llama")
    ids, mask = padded_batch()
    question = prompt(6, seed=20, rows=3)
    both = torch.cat((mask, torch.ones_like(question)), dim=1)
    with attach(model, COMPOSITIONS[-1], ratio=4, **PROTECTED) as cache, torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, **passed(model, cache))
        logits = model(input_ids=question, attention_mask=both, **passed(model, cache)).logits
    for row, length in enumerate(LENGTHS):
        with attach(model, COMPOSITIONS[-1], ratio=4, **PROTECTED) as alone, torch.inference_mode():
            forward(model, prompt(length, seed=row), alone)
            expected = forward(model, question[row : row + 1], alone)
        padding = ids.shape[1] - length
        valid = cache.state(0).valid[row]
        close(cache.state(0).positions[row][valid], alone.state(0).positions[0].flatten() + padding)
        # Rotation at other absolute positions costs a few float32 roundings.
        close(logits[row], expected[0], atol=1e-3)


# --- chunks, turns, beams --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "chunks"), [("llama", (30, 30, 30)), ("llama", (89, 1)), ("gemma3", (50, 37, 3))])
def test_chunked_prefill_equals_one_shot(name: str, chunks: tuple[int, ...]) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    # The window of 16 spans two chunks where the last one is short.
    composition = COMPOSITIONS[4]
    with attach(model, composition, ratio=4, **PROTECTED) as whole:
        expected = generate(model, ids, NEW, cache=whole)
    with attach(model, composition, ratio=4, prompt_tokens=LENGTH, **PROTECTED) as cache, torch.inference_mode():
        for part in torch.split(ids, list(chunks), dim=1):
            logits = forward(model, part, cache)
        tokens = greedy_inside(model, cache, logits)
    assert tokens == expected[0].tolist()
    for i, sliding in enumerate(cache.is_sliding):
        if not sliding:
            assert torch.equal(cache.state(i).mass, whole.state(i).mass)
            close(cache.state(i).positions, whole.state(i).positions)
            close(cache.state(i).keys, whole.state(i).keys)
            close(cache.state(i).values, whole.state(i).values)


def greedy_inside(model: Any, cache: CompressedCache, logits: Tensor) -> list[int]:
    """Greedy tokens within an open ``attach``."""
    tokens = [int(logits[0, -1].argmax())]
    while len(tokens) < NEW:
        tokens.append(int(forward(model, torch.tensor([tokens[-1:]]), cache)[0, -1].argmax()))
    return tokens


def test_generates_own_chunked_prefill() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "snapkv(window=16)", ratio=4, **PROTECTED) as cache:
        expected = generate(model, ids, NEW, cache=cache)
    with attach(model, "snapkv(window=16)", ratio=4, prompt_tokens=LENGTH, **PROTECTED) as cache:
        assert torch.equal(generate(model, ids, NEW, cache=cache, prefill_chunk_size=40), expected)


def test_a_chunk_beyond_the_prompt_is_refused() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "streaming", ratio=4, prompt_tokens=70, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids[:, :40], cache)
        assert not cache.report().layers[0].compressed
        with pytest.raises(UnsupportedError, match="after 70 tokens, but a forward reached 90"):
            forward(model, ids[:, 40:], cache)


def test_a_second_turn_stays_exact() -> None:
    model, turn = tiny("llama"), prompt(20, seed=3)
    with attach(model, COMPOSITIONS[-1], ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        before = cache.state(1)
        logits = forward(model, turn, cache)
        after = cache.state(1)
    assert after.width == before.width + 20
    assert torch.equal(after.keys[:, :, : before.width], before.keys)
    assert after.positions[0, 0, -20:].tolist() == list(range(LENGTH, LENGTH + 20))
    by = bound(COMPOSITIONS[-1])
    close(logits, at_once(model, turn, snapshot(model, prompt(LENGTH), by).compressed(by)))


def test_recompress_compresses_later_turns() -> None:
    model, turn = tiny("llama"), prompt(40, seed=3)
    with attach(model, "ewmeans_pre(iters=2)", ratio=4, recompress=True, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        first = cache.state(0)
        forward(model, turn[:, :1], cache)
        # A single token is decoding, not a turn.
        assert cache.state(0).width == first.width + 1
        forward(model, turn[:, 1:], cache)
        state = cache.state(0)
    seen = LENGTH + 40
    assert {layer.slots for layer in cache.report().layers} == {(12 + (seen - 12) // 4,) * 2}
    assert bool((state.positions.diff(dim=-1) >= 0).all())
    assert state.positions[0, 0, -8:].tolist() == list(range(seen - 8, seen))
    assert state.positions[0, 0, :4].tolist() == [0, 1, 2, 3]
    # Merging what was merged adds masses.
    assert state.mass.sum(-1).tolist() == [[seen, seen]]
    assert cache.get_seq_length() == seen


def test_recompress_scores_with_the_last_turns_queries() -> None:
    # 100 slots hold all of the first turn, so the second compression sees every token: as that of one prompt would.
    model, ids, turn = tiny("llama"), prompt(LENGTH), prompt(40, seed=3)
    again = attach(model, "snapkv(window=24)", slots=100, recompress=True, **PROTECTED)
    with again as cache, torch.inference_mode():
        forward(model, ids, cache)
        assert cache.state(0).width == LENGTH
        forward(model, turn, cache)
    with attach(model, "snapkv(window=24)", slots=100, **PROTECTED) as whole, torch.inference_mode():
        forward(model, torch.cat((ids, turn), dim=1), whole)
    for i in range(3):
        assert cache.state(i).width == 100
        assert torch.equal(cache.state(i).positions, whole.state(i).positions)


def test_an_old_prompt_leaves_no_queries_behind() -> None:
    # The window (84) is wider than the second prompt (28): queries of the first would fill it up.
    model = tiny("llama")
    composition = "snapkv(window=84)"
    with attach(model, composition, ratio=2, recompress=True, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        cache.reset()
        assert cache.get_seq_length() == 0
        assert cache.report().compress_s == 0
        forward(model, prompt(28, seed=5), cache)
    with attach(model, composition, ratio=2, **PROTECTED) as fresh, torch.inference_mode():
        forward(model, prompt(28, seed=5), fresh)
    assert all(same_bits(cache.state(i), fresh.state(i)) for i in range(3))


def test_lexical_features_are_those_of_the_caches_own_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    # Odd ids count as rare. Neither an earlier prompt of the cache nor a forward with another cache may be mixed in.
    monkeypatch.setattr("kvfw.model.session.text.rare_tokens", lambda _, ids: [float(i % 2) for i in ids])
    tokenizer: Any = SimpleNamespace(all_special_ids=[], convert_ids_to_tokens=list)
    model, ids = tiny("llama"), prompt(LENGTH)
    options = PROTECTED | {"ratio": 4, "tokenizer": tokenizer}
    with attach(model, "pinned", **options) as fresh, torch.inference_mode():
        forward(model, ids, fresh)
    with attach(model, "pinned", prompt_tokens=LENGTH, **options) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH, seed=7), cache)
        cache.reset()
        forward(model, ids[:, :50], cache)
        model(input_ids=prompt(LENGTH, seed=8), use_cache=True)
        forward(model, ids[:, 50:], cache)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as plain, torch.inference_mode():
        forward(model, ids, plain)
    for i in range(3):
        assert torch.equal(cache.state(i).positions, fresh.state(i).positions)
        assert not torch.equal(cache.state(i).positions, plain.state(i).positions)


def test_a_cache_can_be_reset_and_used_again() -> None:
    model, ids = tiny("gemma3"), prompt(LENGTH)
    with attach(model, "snapkv(window=8)", ratio=4, **PROTECTED) as cache:
        first = generate(model, ids, NEW, cache=cache)
        cache.reset()
        assert torch.equal(generate(model, ids, NEW, cache=cache), first)


def test_beam_search_at_ratio_1_equals_plain_beam_search() -> None:
    model, ids = tiny("llama"), prompt(LENGTH, rows=2)
    options = {"num_beams": 3, "num_return_sequences": 3}
    plain = generate(model, ids, 8, **options)
    with attach(model, "ewmeans_post(iters=2)", ratio=1, **PROTECTED) as cache:
        assert torch.equal(generate(model, ids, 8, cache=cache, **options), plain)


def test_beam_scores_are_those_of_the_compressed_cache() -> None:
    # Rows of wrong beams would give a sequence the score of another one.
    model, ids = tiny("llama"), prompt(LENGTH)
    by = bound(COMPOSITIONS[-1])
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    untyped: Any = model
    with attach(model, COMPOSITIONS[-1], ratio=4, allocator=Ragged(), **PROTECTED) as cache, torch.inference_mode():
        out = untyped.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=8,
            do_sample=False,
            **passed(model, cache),
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    taken = snapshot(model, ids, by)
    assert len({tuple(row) for row in out.sequences.tolist()}) == 4
    for sequence, score in zip(out.sequences[:, LENGTH:], out.sequences_scores, strict=True):
        later = at_once(model, sequence[None, :-1], taken.compressed(allocated(by, Ragged())))
        logits = torch.cat((taken.logits[None], later), dim=1).log_softmax(-1)
        close(logits[0].gather(1, sequence[:, None]).sum(), score, atol=1e-3)


def test_sampling_several_sequences_repeats_the_prompt() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "snapkv(window=8)", ratio=4, **PROTECTED) as cache:
        torch.manual_seed(0)
        out = generate(model, ids, 8, cache=cache, do_sample=True, num_return_sequences=3)
    assert out.shape[0] == 3
    assert cache.state(0).keys.shape[0] == 3
    assert len({tuple(row) for row in out.tolist()}) == 3


@pytest.mark.parametrize("kind", ["assistant_model", "prompt_lookup_num_tokens"])
def test_decoding_that_rolls_the_cache_back_is_refused_by_name(kind: str) -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    options: dict[str, Any] = {kind: build("llama", seed=1) if kind == "assistant_model" else 2}
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache:
        generate(model, ids, NEW, cache=cache)
        with pytest.raises(UnsupportedError, match=f"cannot be cropped, so assisted .* {kind}="):
            cache.crop(-1)
    with (
        pytest.warns(UserWarning, match="compressed nothing"),
        attach(model, "streaming", ratio=4, **PROTECTED) as cache,
        pytest.raises(UnsupportedError, match="cannot be cropped"),
    ):
        generate(model, ids, NEW, cache=cache, **options)


# --- what is refused -------------------------------------------------------------------------------------


def test_wrong_requests_are_refused_before_the_model_runs() -> None:
    model = tiny("llama")
    with pytest.raises(SpecError), attach(model, "snapkv:0.8+", ratio=4):
        pass
    with pytest.raises(BudgetError, match="exactly one"), attach(model, "snapkv", ratio=4, slots=10):
        pass
    with pytest.raises(BudgetError, match="sinks is -1"), attach(model, "snapkv", ratio=4, sinks=-1):
        pass
    assert model.config._attn_implementation == "sdpa"


def test_hidden_states_and_attention_options_still_work() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with torch.inference_mode():
        plain = model(input_ids=ids, output_hidden_states=True)
        with attach(model, "streaming", ratio=4, **PROTECTED) as cache:
            attached = model(input_ids=ids, output_hidden_states=True, **passed(model, cache))
    assert len(attached.hidden_states) == 4
    # The prompt itself runs on the full cache, whatever is kept of it.
    assert all(torch.equal(x, y) for x, y in zip(plain.hidden_states, attached.hidden_states, strict=True))
    assert torch.equal(plain.logits, attached.logits)


# --- the embedded model ----------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("composition", ["snapkv", COMPOSITIONS[4]])
def test_real_text_through_attach_and_through_a_snapshot(smollm: LoadedModel, composition: str) -> None:
    model, ids, new = smollm.model, text_ids(smollm, 240), 8
    for ratio in (1, 4):
        by = bound(composition, ratio=ratio, recent=32)
        taken = snapshot(model, ids, by)
        with attach(model, composition, ratio=ratio, sinks=4, recent=32) as cache:
            tokens = generate(model, ids, new, cache=cache, repetition_penalty=1.0)
        ours = taken.compressed(by)
        width = ours.state(0).width
        for i in range(len(cache.layers)):
            assert torch.equal(cache.state(i).keys[:, :, :width], ours.state(i).keys)
        assert greedy(model, ours, taken.logits, new) == tuple(tokens[0].tolist())
        if ratio == 1:
            assert torch.equal(generate(model, ids, new, repetition_penalty=1.0), tokens)


@pytest.mark.real
def test_real_prompts_of_unequal_length_with_beams_are_those_of_each_alone(smollm: LoadedModel) -> None:
    model, text = smollm.model, text_ids(smollm, 260)
    prompts = (text[:, :150], text[:, 150:260])
    ids = torch.full((2, 150), int(smollm.tokenizer.pad_token_id))
    mask = torch.zeros_like(ids)
    for row, own in enumerate(prompts):
        ids[row, 150 - own.shape[1] :], mask[row, 150 - own.shape[1] :] = own[0], 1
    composition = COMPOSITIONS[4]
    options: dict[str, Any] = {"sinks": 4, "recent": 32}
    beams: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2, "repetition_penalty": 1.0}
    with attach(model, composition, ratio=4, **options) as cache:
        both = generate(model, ids, 6, attention_mask=mask, cache=cache, **beams)
    for row, own in enumerate(prompts):
        with attach(model, composition, ratio=4, **options) as alone:
            assert torch.equal(generate(model, own, 6, cache=alone, **beams), both[2 * row : 2 * row + 2])
        for i in range(len(cache.layers)):
            ours, theirs = cache.state(i), alone.state(i)
            for beam in (2 * row, 2 * row + 1):
                assert int(ours.valid[beam].sum()) == int(theirs.valid[0].sum())
                assert ours.mass[beam].sum(-1).tolist() == theirs.mass[0].sum(-1).tolist()
