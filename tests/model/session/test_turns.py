"""Further turns over a compressed cache: at once or in pieces, compressed again or not, as users call ``generate``."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from helpers.tiny_models import Ragged, build, close, forward, generate, prompt, text_ids, tiny
from kvfw.errors import BudgetError, PromptError, RequestError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.load.load import LoadedModel
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, TURN, NEW = 70, 30, 8
MIX = "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2"
BIASED = "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv(window=8),bias=log)"


@functools.cache
def generate_cuts_turns() -> bool:
    """Whether generate gives the pieces of a later turn masks over all tokens so far; older transformers do not."""
    model, own, right = build("llama"), DynamicCache(), []
    first = generate(model, prompt(20), 2, cache=own)

    def look(module: nn.Module, args: object, given: dict[str, Any]) -> None:
        mask, so_far = given.get("attention_mask"), own.get_seq_length() + given["input_ids"].shape[1]
        right.append(mask is None or mask.shape[1] == so_far)

    model.register_forward_pre_hook(look, with_kwargs=True)
    generate(model, torch.cat((prompt(20), first, prompt(9, seed=3)), dim=1), 1, cache=own, prefill_chunk_size=4)
    return all(right)


def answered(
    model: PreTrainedModel, so_far: Tensor, new: int, cache: CompressedCache, chunk: int | None, **options: Any
) -> Tensor:
    """The answer to a turn that comes in pieces; where generate cannot cut it up, the caller does."""
    if chunk is not None and not generate_cuts_turns():
        with pytest.raises(UnsupportedError, match="the attention mask speaks of"):
            generate(model, so_far, new, cache=cache, prefill_chunk_size=chunk, **options)
        with torch.inference_mode():
            for piece in torch.split(so_far[:, cache.get_seq_length() :], chunk, dim=1)[:-1]:
                forward(model, piece, cache)
        chunk = None
    return generate(model, so_far, new, cache=cache, prefill_chunk_size=chunk, **options)


def conversation(name: str, composition: str, chunk: int | None, **options: Any) -> tuple[Tensor, Tensor, list[Any]]:
    """Tokens of the second turn, logits of a third fed after it, and the states in between."""
    model, ids, turn = tiny(name), prompt(LENGTH), prompt(TURN, seed=3)
    with attach(model, composition, ratio=4, **PROTECTED, **options) as cache:
        first = generate(model, ids, NEW, cache=cache)
        so_far = torch.cat((ids, first, turn), dim=1)
        # The last token of an answer is not in the cache yet; it comes with the next turn.
        cache.expect(TURN + 1)
        answer = answered(model, so_far, NEW, cache, chunk)
        states = [layer.state for layer in cache.compressed_layers()]
        third = torch.cat((answer[:, -1:], prompt(9, seed=4)), dim=1)
        cache.expect(10)
        with torch.inference_mode():
            logits = torch.cat([forward(model, part, cache) for part in torch.split(third, chunk or 10, dim=1)], dim=1)
    return answer, logits, states


@pytest.mark.parametrize("recompress", [False, True])
@pytest.mark.parametrize(
    ("name", "composition"), [("llama", MIX), ("llama", BIASED), ("llama", "h2o"), ("gemma3", "snapkv(window=16)")]
)
def test_a_turn_in_pieces_is_the_turn_at_once(name: str, composition: str, recompress: bool) -> None:
    options: dict[str, Any] = {"recompress": recompress, "allocator": Ragged()}
    whole, logits, states = conversation(name, composition, None, **options)
    # 31 tokens in pieces of 7 leave 3, of 10 leave 1: a single token of an announced turn is no decoding.
    for chunk in (7, 10):
        answer, other_logits, other_states = conversation(name, composition, chunk, **options)
        assert torch.equal(answer, whole)
        close(other_logits, logits)
        for ours, theirs in zip(other_states, states, strict=True):
            assert torch.equal(ours.mass, theirs.mass)
            close(ours.positions, theirs.positions)


@pytest.mark.parametrize("recompress", [False, True])
def test_new_ids_alone_are_the_turn_too(recompress: bool) -> None:
    model, ids, turn = tiny("llama"), prompt(LENGTH), prompt(TURN, seed=3)
    answers = []
    for alone in (False, True):
        with attach(model, MIX, ratio=4, recompress=recompress, **PROTECTED) as cache:
            first = generate(model, ids, NEW, cache=cache)
            so_far = torch.cat((ids, first, turn), dim=1)
            given = so_far[:, -TURN - 1 :] if alone else so_far
            answers.append(generate(model, given, NEW, cache=cache, attention_mask=torch.ones_like(so_far)))
            assert cache.get_seq_length() == so_far.shape[1] + NEW - 1
    assert torch.equal(*answers)


@pytest.mark.parametrize("composition", [MIX, "h2o:0.5+ewmeans_post(iters=2,weight=h2o):0.5"])
def test_masses_and_positions_come_through_three_compressions(composition: str) -> None:
    model = tiny("llama")
    seen = 0
    with attach(model, composition, ratio=4, recompress=True, **PROTECTED) as cache, torch.inference_mode():
        for number, length in enumerate((LENGTH, TURN, 45)):
            forward(model, prompt(length, seed=number), cache)
            seen += length
            for layer in cache.compressed_layers():
                state = layer.state
                assert state.width == 12 + (seen - 12) // 4
                assert state.mass.sum(-1).tolist() == [[seen, seen]]
                assert bool((state.positions.diff(dim=-1) >= 0).all())
                assert state.positions[0, :, -8:].tolist() == [list(range(seen - 8, seen))] * 2
                assert state.positions[0, :, :4].tolist() == [[0, 1, 2, 3]] * 2
                # Attention of every query so far, though most of its slots were merged: nothing of it is lost.
                for sums in layer.captured.sums.values():
                    close(sums.sum(-1), torch.full((1, 2), float(seen)))


def test_padding_between_turns_hides_no_slot_from_the_scores() -> None:
    # In a padded second turn, slots at position -1 stand between others: neither pooling nor sums may notice.
    model, turns = tiny("llama"), (prompt(31, seed=5), prompt(40, seed=6))
    padded = torch.zeros(2, 40, dtype=torch.int64)
    for row, own in enumerate(turns):
        padded[row, 40 - own.shape[1] :] = own
    ids = torch.cat((prompt(LENGTH), prompt(LENGTH, seed=2)))
    mask = torch.cat((torch.ones_like(ids), (padded != 0).long()), dim=1)
    positions = mask.cumsum(1) - 1
    # The wider window reaches beyond the second turn: into the first, past the padding.
    for composition in ("snapkv(window=24)", "snapkv(window=50)", "h2o"):
        again = attach(model, composition, slots=60, recompress=True, **PROTECTED)
        with again as cache, torch.inference_mode():
            forward(model, ids, cache)
            forward(model, padded, cache, attention_mask=mask, position_ids=positions[:, LENGTH:].clamp(min=0))
        for row, own in enumerate(turns):
            lone = attach(model, composition, slots=60, recompress=True, **PROTECTED)
            with lone as alone, torch.inference_mode():
                forward(model, ids[row : row + 1], alone)
                forward(model, own, alone)
            for i in range(3):
                assert torch.equal(cache.state(i).positions[row], alone.state(i).positions[0])


# --- what is refused -------------------------------------------------------------------------------------


def test_ids_that_do_not_reach_the_model_are_explained() -> None:
    model = tiny("llama")
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache:
        generate(model, prompt(LENGTH), NEW, cache=cache)
        # transformers takes ids without a mask over all of them for the whole conversation.
        with pytest.raises(PromptError, match="attention mask over all 77 tokens so far"):
            generate(model, prompt(TURN), NEW, cache=cache)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_mask_over_the_new_tokens_only_is_refused(name: str) -> None:
    model = tiny(name)
    with attach(model, "streaming", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH), cache)
        with pytest.raises(UnsupportedError, match="speaks of 30 tokens; the cache has seen 70 and 30 are new"):
            forward(model, prompt(TURN), cache, attention_mask=torch.ones(1, TURN, dtype=torch.int64))


@pytest.mark.parametrize("tokens", [0, -3, 1.5, True])
def test_a_turn_has_a_whole_number_of_tokens(tokens: Any) -> None:
    with attach(tiny("llama"), "streaming", ratio=4, **PROTECTED) as cache:
        with pytest.raises(BudgetError, match="was announced"):
            cache.expect(tokens)
        generate(tiny("llama"), prompt(LENGTH), 1, cache=cache)


def test_a_rotation_that_changed_between_compressions_is_refused() -> None:
    # Dynamic scaling of 64 positions: the second turn is rotated by other frequencies than the first.
    model = tiny("dynamic")
    with attach(model, "ewmeans_pre(iters=2)", ratio=4, recompress=True, **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(60), cache)
        with pytest.raises(UnsupportedError, match="changes its rotation with the length"):
            forward(model, prompt(60, seed=2), cache)


# --- the embedded model ----------------------------------------------------------------------------------


@pytest.mark.real
def test_a_real_conversation_in_pieces_and_at_once(smollm: LoadedModel) -> None:
    model, ids = smollm.model, text_ids(smollm, 260)
    said = []
    for chunk in (None, 24):
        with attach(model, MIX, ratio=4, sinks=4, recent=32, recompress=True) as cache:
            first = generate(model, ids[:, :200], 6, cache=cache, repetition_penalty=1.0)
            so_far = torch.cat((ids[:, :200], first, ids[:, 200:]), dim=1)
            cache.expect(61)
            said.append(answered(model, so_far, 6, cache, chunk, repetition_penalty=1.0))
            state = cache.state(7)
            assert state.mass.sum(-1).tolist() == [[271.0] * 3]
            assert state.width == 36 + (266 - 36) // 4 + 5
    assert torch.equal(*said)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("length", [LENGTH - 10, LENGTH, LENGTH + NEW - 2])
def test_a_second_prompt_in_a_block_is_refused(name: str, length: int) -> None:
    # generate takes it for the beginning of what was seen, and would feed its end at positions that are taken.
    model = tiny(name)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        generate(model, prompt(LENGTH), NEW, cache=cache)
        # Older transformers feed its middle, with a mask that is too short: that is refused first.
        with pytest.raises(
            RequestError, match=r"up to position 76, .* the ids do not go on|the attention mask speaks of"
        ):
            generate(model, prompt(length, seed=9), NEW, cache=cache)


def test_a_padded_second_prompt_is_refused_for_the_row_that_has_it() -> None:
    model = tiny("llama")
    ids, mask = prompt(LENGTH, rows=2), torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, :20] = 0
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        more = torch.cat((mask, torch.ones(2, 5, dtype=torch.int64)), dim=1)
        after = torch.stack((torch.arange(70, 75), torch.arange(50, 55)))
        forward(model, prompt(5, rows=2), cache, attention_mask=more, position_ids=after)
        more = torch.cat((more, torch.ones(2, 5, dtype=torch.int64)), dim=1)
        after = torch.stack((torch.arange(75, 80), torch.arange(54, 59)))
        with pytest.raises(PromptError, match="up to position 54, and a new one is to stand at position 54"):
            forward(model, prompt(5, rows=2), cache, attention_mask=more, position_ids=after)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_refused_forward_leaves_the_cache_as_it_was(name: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    answers = []
    for refused in (False, True):
        with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
            so_far = torch.cat((ids, generate(model, ids, NEW, cache=cache), prompt(5, seed=3)), dim=1)
            if refused:
                with pytest.raises(RequestError):
                    generate(model, prompt(LENGTH - 10, seed=9), NEW, cache=cache)
                with pytest.raises(PromptError, match="3 rows"):
                    generate(model, so_far, NEW, cache=cache, num_beams=3)
            answers.append(generate(model, so_far, NEW, cache=cache))
    assert torch.equal(*answers)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("options", [{"num_return_sequences": 3, "do_sample": True}, {"num_beams": 3}])
def test_several_answers_to_a_cache_of_one_need_its_rows_repeated(name: str, options: dict[str, Any]) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        so_far = torch.cat((ids, generate(model, ids, NEW, cache=cache), prompt(5, seed=3)), dim=1)
        with pytest.raises(PromptError, match=r"3 rows of tokens were fed to a cache of 1\. .*batch_repeat_interleave"):
            generate(model, so_far, NEW, cache=cache, **options)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        generate(model, ids, NEW, cache=cache)
        cache.batch_repeat_interleave(3)
        assert generate(model, so_far.repeat(3, 1), NEW, cache=cache).shape == (3, NEW)
