"""What a session observes: the last queries and the scores made of them, beside a slow reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from helpers.eager import RECENT, SINKS, eager_attention, reference_kept, reference_scores
from helpers.tiny_models import bound, build, kept, prompt, same_bits, snapshot, text_ids, tiny
from kvfw.core.state.observation import Needs
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.prefill import prefill

GRID = [(window, kernel, pool) for window in (8, 32, 84) for kernel in (1, 5, 7) for pool in ("avg", "max")]


def check_against_eager(model: PreTrainedModel, eager: PreTrainedModel, ids: Tensor) -> None:
    length = ids.shape[1]
    attentions = eager_attention(eager, ids)
    taken = prefill(model, ids[0].tolist(), Needs(queries=84), sinks=SINKS, recent=RECENT)
    budget = (length - SINKS - RECENT) // 4
    for window, kernel, pool in GRID:
        by = bound(f"snapkv(window={window},kernel={kernel},pool={pool})", sinks=SINKS, recent=RECENT)
        cache = taken.compressed(by)
        for i, attention in enumerate(attentions):
            state = cache.state(i)
            heads = state.keys.shape[1]
            expected = reference_kept(reference_scores(attention, heads, window, kernel, pool), budget, length)
            for head in range(heads):
                assert kept(state, 0, head) == expected[head], (window, kernel, pool, i, head)


@pytest.mark.parametrize("name", ["llama", "mha", "qwen3"])
def test_snapkv_keeps_what_eager_attention_says(name: str) -> None:
    check_against_eager(tiny(name), tiny(name, "eager"), prompt(130))


@pytest.mark.real
def test_snapkv_on_real_text_keeps_what_eager_attention_says(smollm: LoadedModel) -> None:
    model = smollm.model
    # A copy that shares the weights, so that the fixture's own configuration is never touched.
    eager = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    eager.set_attn_implementation("eager")
    check_against_eager(model, eager, text_ids(smollm, 260))
    assert model.config._attn_implementation == "sdpa"


def test_the_reference_tells_windows_kernels_and_pools_apart() -> None:
    # Were all of the grid to keep the same tokens, the tests above would say nothing about the options.
    attention = eager_attention(tiny("llama", "eager"), prompt(130))[1]
    sets = {
        str(reference_kept(reference_scores(attention, 2, window, kernel, pool), 29, 130))
        for window, kernel, pool in GRID
    }
    # Kernel 1 is the same for both pools.
    assert len(sets) == len(GRID) - 3


@pytest.mark.parametrize("composition", ["snapkv(window=8)", "snapkv:0.8+ewmeans_pre(iters=2):0.2"])
def test_eager_and_sdpa_keep_the_same(composition: str) -> None:
    by = bound(composition)
    states = [
        snapshot(tiny("llama", attention), prompt(130), by).compressed_states(by) for attention in ("eager", "sdpa")
    ]
    for i in range(3):
        assert torch.equal(states[0][i].mass, states[1][i].mass)
        torch.testing.assert_close(states[0][i].positions, states[1][i].positions, atol=1e-3, rtol=0)


@pytest.mark.real
def test_eager_and_sdpa_keep_the_same_of_real_text(smollm: LoadedModel) -> None:
    by = bound("snapkv")
    ids = text_ids(smollm, 200)
    eager: Any = copy.deepcopy(smollm.model, {id(weight): weight for weight in smollm.model.parameters()})
    eager.set_attn_implementation("eager")
    ours, theirs = (snapshot(model, ids, by).compressed_states(by) for model in (smollm.model, eager))
    for i in range(30):
        assert torch.equal(ours[i].positions, theirs[i].positions)


# --- independence ----------------------------------------------------------------------------------------

OTHERS = (1, 84, 500)


@pytest.mark.parametrize(
    "composition", ["snapkv(window=8)", "snapkv(window=40):0.8+ewmeans_pre(iters=2,block=30):0.2", "uniform"]
)
def test_states_do_not_depend_on_what_else_is_captured(composition: str) -> None:
    model, ids = tiny("llama"), prompt(130)
    by = bound(composition)
    alone = snapshot(model, ids, by).compressed_states(by)
    for queries in OTHERS:
        needs = by.needs | Needs(queries=queries)
        beside = prefill(model, ids[0].tolist(), needs, sinks=4, recent=8).compressed_states(by)
        assert all(same_bits(alone[i], beside[i]) for i in range(3)), queries


def test_states_do_not_depend_on_order() -> None:
    model, ids = tiny("llama"), prompt(130)
    compositions = (
        "snapkv(window=8)",
        "ewmeans_post(iters=2)",
        "streaming(positions=cache)",
        "snapkv:0.5+ewmeans_pre(iters=2):0.5",
    )
    each = [bound(c) for c in compositions]
    taken = prefill(model, ids[0].tolist(), Needs(queries=84), sinks=4, recent=8)
    forwards = [taken.compressed_states(by) for by in each]
    backwards = [taken.compressed_states(by) for by in reversed(each)][::-1]
    for first, second in zip(forwards, backwards, strict=True):
        assert all(same_bits(first[i], second[i]) for i in range(3))


def test_nothing_is_captured_that_nobody_needs() -> None:
    taken = snapshot(tiny("llama"), prompt(50), bound("streaming"))
    assert all(obs.queries is None for obs in taken.observations.values())
    few = snapshot(tiny("llama"), prompt(50), bound("snapkv(window=8)"))
    assert {obs.window()[0].shape for obs in few.observations.values()} == {(1, 4, 8, 16)}
    assert few.observations[0].window()[1].tolist() == [list(range(42, 50))]
    many = snapshot(tiny("llama"), prompt(50), bound("snapkv(window=84)"))
    assert many.observations[0].window()[0].shape == (1, 4, 50, 16)


def test_the_scale_is_the_models_own() -> None:
    # Gemma 3 scales by a setting of its own, not by its head size.
    model = build("gemma3", query_pre_attn_scalar=9)
    taken = snapshot(model, prompt(50), bound("snapkv(window=8)"))
    assert {obs.scale for obs in taken.observations.values()} == {1 / 3}
    assert set(taken.observations) == {1, 3}


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_flash_attention_is_left_where_a_mask_is_needed(softcap: float | None) -> None:
    # FlashAttention takes no bias. sdpa refuses capped logits, so those run on eager attention. No GPU is needed to see
    # which function is chosen.
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.gemma2 import modeling_gemma2

    from kvfw.model.compat.routing import model_attention
    from kvfw.model.session.attend import taking_masks

    module = modeling_gemma2.Gemma2Attention.__new__(modeling_gemma2.Gemma2Attention)
    name = taking_masks("flash_attention_2", {} if softcap is None else {"softcap": softcap})
    chosen = model_attention(module, name)
    expected = sdpa_attention_forward if softcap is None else modeling_gemma2.eager_attention_forward
    assert chosen is expected
