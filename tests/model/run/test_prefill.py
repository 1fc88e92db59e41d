"""One observed forward of a prompt, from which any number of caches are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.adapters import add_lora
from helpers.tiny_models import bound, build, close, forward, parts, prompt, same_bits, session, snapshot, stored, tiny
from kvfw.core.compress.scores import checked_scores
from kvfw.core.state.observation import Needs
from kvfw.errors import BudgetError
from kvfw.model.compat.versions import cache_name
from kvfw.model.run.decode import greedy, tokens_per_second
from kvfw.model.run.prefill import prefill

LENGTH = 90


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3", "gpt2"])
def test_a_snapshot_holds_what_the_plain_model_caches(name: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    taken = snapshot(model, ids, bound("snapkv(window=8)"))
    with torch.inference_mode():
        plain: Any = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    assert torch.equal(taken.logits, plain.logits[:, -1])
    assert taken.tokens == LENGTH
    assert taken.seconds > 0
    for i, layer in enumerate(plain[cache_name(model)].layers):
        keys, values = stored(taken.cache, i)
        assert torch.equal(keys, layer.keys)
        assert torch.equal(values, layer.values)
    for state in taken.full_states().values():
        assert state.positions[0, 0].tolist() == list(range(LENGTH))
        assert bool((state.mass == 1).all())
        assert bool((state.bias == 0).all())


def test_caches_made_of_a_snapshot_never_change_it() -> None:
    model = tiny("gemma3")
    by = bound("merge(merger=ewmeans(iters=2),weight=snapkv,bias=log)")
    taken = snapshot(model, prompt(LENGTH), by)
    before = {i: {k: v.clone() for k, v in parts(obs.state).items()} for i, obs in taken.observations.items()}
    sliding = taken.cache.layers[0].keys
    for cache in (taken.full(), taken.compressed(by), taken.full()):
        greedy(model, cache, taken.logits, 8)
        tokens_per_second(model, cache, taken.logits, steps=2, warmup=0)
    for i, obs in taken.observations.items():
        assert all(torch.equal(value, before[i][key]) for key, value in parts(obs.state).items())
    assert taken.cache.layers[0].keys is sliding
    assert taken.cache.get_seq_length() == LENGTH


def test_a_reset_cache_leaves_its_snapshot_alone() -> None:
    by = bound("snapkv(window=8)")
    taken = snapshot(tiny("gemma3"), prompt(LENGTH), by)
    before = [x.clone() for x in stored(taken.cache, 0)]
    taken.compressed(by).reset()
    assert all(torch.equal(*pair) for pair in zip(stored(taken.cache, 0), before, strict=True))
    assert taken.cache.get_seq_length() == LENGTH


def test_caches_of_a_snapshot_know_its_adapters() -> None:
    model: Any = build("llama")
    (first, *_) = add_lora(model, "style")
    by = bound("snapkv(window=8)")
    taken = snapshot(model, prompt(LENGTH), by)
    first.disable_adapters = True
    assert taken.full().adapters == taken.compressed(by).adapters == "style in 3 modules"


def test_the_same_snapshot_gives_the_same_cache_every_time() -> None:
    by = bound("snapkv:0.5+ewmeans_post(iters=2):0.5")
    taken = snapshot(tiny("llama"), prompt(LENGTH), by)
    first = taken.compressed_states(by)
    greedy(tiny("llama"), taken.compressed(by), taken.logits, 4)
    again = taken.compressed_states(by)
    other = snapshot(tiny("llama"), prompt(LENGTH), by).compressed_states(by)
    for i in range(3):
        assert same_bits(first[i], again[i])
        assert same_bits(first[i], other[i])


def test_the_full_cache_continues_as_the_plain_model_does() -> None:
    model, ids, later = tiny("llama"), prompt(LENGTH), prompt(9, seed=2)
    with torch.inference_mode():
        expected = model(input_ids=torch.cat((ids, later), dim=1)).logits[:, LENGTH:]
    cache = snapshot(model, ids, bound("streaming")).full()
    with session(model, cache):
        close(forward(model, later, cache), expected)


def test_a_prompt_without_a_middle_is_kept_whole() -> None:
    by = bound("snapkv(window=8)", ratio=16)
    taken = snapshot(tiny("llama"), prompt(12), by)
    states = taken.compressed_states(by)
    assert all(same_bits(states[i], taken.observations[i].state) for i in range(3))


def test_a_budget_of_no_slots_is_refused() -> None:
    by = bound("snapkv(window=8)", ratio=16)
    taken = snapshot(tiny("llama"), prompt(20), by)
    with pytest.raises(BudgetError, match="ratio=16 leaves 0 slots for a middle of 8 tokens"):
        taken.compressed_states(by)


def test_a_snapshot_of_one_token() -> None:
    taken = prefill(tiny("llama"), [5], Needs(queries=84), sinks=4, recent=84)
    assert taken.observations[0].window()[0].shape == (1, 4, 1, 16)
    by = bound("snapkv", recent=84)
    assert taken.compressed(by).state(0).width == 1


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("chunk", [1, 13, 89, 90, 10**30])
def test_a_prompt_in_pieces_is_observed_as_at_once(name: str, chunk: int) -> None:
    model, ids = tiny(name), prompt(LENGTH)[0].tolist()
    needs = Needs(queries=16, column_sums=frozenset({0, 4}))
    whole = prefill(model, ids, needs, sinks=4, recent=8)
    pieces = prefill(model, ids, needs, sinks=4, recent=8, chunk=chunk)
    assert pieces.tokens == whole.tokens == LENGTH
    close(pieces.logits, whole.logits)
    for index, obs in whole.observations.items():
        other = pieces.observations[index]
        for mine, theirs in zip(parts(obs.state).values(), parts(other.state).values(), strict=True):
            close(theirs, mine)
        close(other.window()[0], obs.window()[0])
        assert torch.equal(other.window()[1], obs.window()[1])
        for local in (0, 4):
            close(other.received(local), obs.received(local))


@pytest.mark.parametrize("composition", ["snapkv(window=16)", "h2o", "snapkv(window=16):0.8+ewmeans_pre:0.2"])
def test_a_prompt_in_pieces_is_compressed_as_at_once(composition: str) -> None:
    model, ids, by = tiny("llama"), prompt(LENGTH)[0].tolist(), bound(composition)
    whole = prefill(model, ids, by.needs, sinks=4, recent=8).compressed_states(by)
    pieces = prefill(model, ids, by.needs, sinks=4, recent=8, chunk=24).compressed_states(by)
    for index, state in whole.items():
        # The same tokens are kept; centroids stand at weighted means, which round.
        exact = state.mass == 1
        assert torch.equal(pieces[index].mass, state.mass)
        assert torch.equal(pieces[index].positions[exact], state.positions[exact])
        close(pieces[index].positions, state.positions)
        close(pieces[index].keys, state.keys)


def test_the_largest_forward_is_a_piece() -> None:
    model, sizes = build("llama"), list[int]()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prefill(model, prompt(LENGTH)[0].tolist(), Needs(), sinks=4, recent=8, chunk=40)
    assert sizes == [40, 40, 10]


def test_compositions_share_scores_and_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, int]]()

    def counted(scorer: Any, obs: Any) -> Any:
        asked.append((str(scorer), obs.layer))
        return checked_scores(scorer, obs)

    model, ids = tiny("llama"), prompt(LENGTH)
    bys = [
        bound(text) for text in ("snapkv(window=16)", "ewmeans_pre(weight=snapkv(window=16),iters=2)", "h2o", "snapkv")
    ]
    needs = Needs(queries=84, column_sums=frozenset({0}))
    alone = [prefill(model, ids[0].tolist(), by.needs, sinks=4, recent=8).compressed_states(by) for by in bys]
    monkeypatch.setattr("kvfw.core.compress.scores.checked_scores", counted)
    shared = prefill(model, ids[0].tolist(), needs, sinks=4, recent=8)
    together = [shared.compressed_states(by) for by in bys]
    # Three different scorers, three layers: each was asked once per layer.
    assert len(asked) == len(set(asked)) == 9
    for mine, theirs in zip(together, alone, strict=True):
        assert all(same_bits(mine[index], theirs[index]) for index in theirs)
    assert len(asked) == 9
