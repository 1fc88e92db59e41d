"""Rows decoded as one batch answer as they would alone."""

import pytest
import torch
from tiny_models import bound, build, prompt, snapshot, text_ids

from kvfw.core.compressor import Compressor
from kvfw.core.observation import Needs
from kvfw.core.state import KVState
from kvfw.model.decode import feed, greedy, greedy_rows
from kvfw.model.load import LoadedModel
from kvfw.model.prefill import Prefill, prefill

COMPOSITIONS = ("uniform", "streaming", "snapkv", "ewmeans_post", "snapkv:0.8+ewmeans_pre(bias=log):0.2")


def states_of(filled: Prefill, compressors: list[Compressor]) -> list[dict[int, KVState]]:
    with torch.inference_mode():
        return [filled.compressed_states(each) for each in compressors]


@pytest.mark.parametrize("name", ["llama", "exaone4"])
def test_a_batch_of_compositions_answers_like_each_alone(name: str) -> None:
    model = build(name)
    compressors = [bound(text) for text in COMPOSITIONS]
    filled = snapshot(model, prompt(120), compressors[2])
    states = states_of(filled, compressors)
    together = greedy_rows(model, filled.cache_of(*states), filled.logits.expand(len(states), -1), 20)
    alone = [greedy(model, filled.cache_of(each), filled.logits, 20) for each in states]
    assert together == alone
    assert len(set(alone)) > 1, "all rows agree, so a mix-up of rows would not show"


def test_rows_that_end_early_do_not_disturb_the_others() -> None:
    model = build("llama")
    filled = snapshot(model, prompt(120), bound("snapkv"))
    states = states_of(filled, [bound("snapkv"), bound("streaming")])
    free = greedy_rows(model, filled.cache_of(*states), filled.logits.expand(2, -1), 12)
    end = next(token for token in free[0][1:] if token not in free[1])
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [end]
    ended = greedy_rows(model, filled.cache_of(*states), filled.logits.expand(2, -1), 12)
    assert ended[0] == free[0][: free[0].index(end) + 1]
    assert ended[1] == free[1]


def test_the_same_tokens_follow_every_row() -> None:
    model = build("llama")
    filled = snapshot(model, prompt(120), bound("snapkv"))
    states = states_of(filled, [bound("snapkv"), bound("uniform")])
    tail = [5, 6, 7]
    together = feed(model, filled.cache_of(*states), tail, rows=2)
    for row, each in enumerate(states):
        torch.testing.assert_close(
            together[row : row + 1], feed(model, filled.cache_of(each), tail), atol=1e-4, rtol=1e-4
        )


@pytest.mark.real
def test_a_batch_on_the_real_model_answers_like_each_alone(smollm: LoadedModel) -> None:
    compressors = [bound(text, recent=84) for text in COMPOSITIONS]
    ids = text_ids(smollm, 300)
    filled = prefill(smollm.model, ids[0].tolist(), Needs(queries=84), sinks=4, recent=84)
    states = states_of(filled, compressors)
    together = greedy_rows(smollm.model, filled.cache_of(*states), filled.logits.expand(len(states), -1), 24)
    assert together == [greedy(smollm.model, filled.cache_of(each), filled.logits, 24) for each in states]
