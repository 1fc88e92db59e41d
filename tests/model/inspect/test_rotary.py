"""Rotation is read from the model: its own keys come out, and go back in, whatever the family does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from helpers.rotations import LENGTH, ROTATIONS, observed
from helpers.tiny_models import VOCAB, bound, build, close, prompt, snapshot, tiny
from kvfw.core.state.rope import rotate, unrotate
from kvfw.errors import UnsupportedError
from kvfw.model.inspect.layers import anatomy
from kvfw.model.inspect.support import fresh_layers
from kvfw.model.load.load import LoadedModel
from kvfw.model.session.session import new_cache


@pytest.mark.parametrize("name", ROTATIONS)
def test_stored_keys_are_the_projected_ones_rotated(name: str) -> None:
    width, layout, source = ROTATIONS[name]
    observations, before = observed(build(name), source)
    assert any(obs.rope is not None for obs in observations.values()) or name in ("cohere2", "exaone4")
    for i, obs in observations.items():
        if obs.rope is None:
            continue
        assert (obs.rope.rotary_dim, obs.rope.layout) == (width, layout)
        state = obs.state
        # Measured 1e-6 at most, of keys of size 8, at angles up to 150 in float32.
        close(rotate(before[i], state.positions, obs.rope), state.keys, atol=1e-5)
        close(unrotate(state.keys, state.positions, obs.rope), before[i], atol=1e-5)
        # Unless the rotation does something, the lines above prove nothing.
        assert float((state.keys - before[i]).abs().max()) > 1
        again = rotate(unrotate(state.keys, state.positions, obs.rope), state.positions, obs.rope)
        close(again, state.keys, atol=1e-5)


def test_yarn_carries_its_attention_factor() -> None:
    rope = anatomy(tiny("yarn")).rotary.read(0)
    assert rope is not None
    # 0.1 ln(factor) + 1.
    assert rope.scaling == pytest.approx(1.1386294361)
    plain = anatomy(tiny("llama")).rotary.read(0)
    assert plain is not None
    assert plain.scaling == 1
    assert not torch.equal(rope.inv_freq, plain.inv_freq)


def test_dynamic_frequencies_are_those_of_the_prompt() -> None:
    model = build("dynamic")
    before = anatomy(model).rotary.read(0)
    observations, _ = observed(model, "k_proj")
    rope = observations[0].rope
    assert rope is not None
    assert before is not None
    assert not torch.equal(rope.inv_freq, before.inv_freq)
    # The module has grown; looking at the model again must not be put off by that.
    after = anatomy(model).rotary.read(0)
    assert after is not None
    assert torch.equal(rope.inv_freq, after.inv_freq)


def test_gemma_has_a_table_for_each_kind_of_layer() -> None:
    rotary = anatomy(tiny("gemma3")).rotary
    sliding, full = rotary.read(0), rotary.read(1)
    assert sliding is not None
    assert full is not None
    assert not torch.equal(sliding.inv_freq, full.inv_freq)


@pytest.mark.parametrize(
    ("name", "rotating"),
    [
        ("smollm3", [True, False, True]),
        # These rotate in their sliding-window layers only, and no setting says so.
        ("cohere2", [True, False, True, False]),
        ("exaone4", [True, False, True, False]),
        ("gpt2", [False, False, False]),
        ("gemma3", [True, True, True, True]),
    ],
)
def test_layers_that_rotate_nothing_have_no_rope(name: str, rotating: list[bool]) -> None:
    model = build(name)
    rotary = anatomy(model).rotary
    assert [rotary.read(i) is not None for i in range(len(rotating))] == rotating
    if name == "gpt2":
        return
    observations, before = observed(model, "k_norm" if name == "exaone4" else "k_proj")
    for i, obs in observations.items():
        # Undoing a rotation that never was would merge keys in a space of no meaning.
        assert torch.equal(obs.state.keys, before[i]) is not rotating[i]


def test_merging_before_rope_where_there_is_none() -> None:
    # Both spaces are the same there.
    model = tiny("cohere2")
    one, two = (
        snapshot(model, prompt(LENGTH), bound(c)).compressed_states(bound(c))
        for c in ("ewmeans_pre(iters=2)", "ewmeans_post(iters=2)")
    )
    assert all(torch.equal(one[i].keys, two[i].keys) for i in (1, 3))


# --- refused ---------------------------------------------------------------------------------------------


def refused(model: PreTrainedModel, *words: str) -> None:
    with pytest.raises(UnsupportedError) as failure:
        new_cache(model)
    for word in (type(model).__name__, *words):
        assert word in str(failure.value)


def test_an_encoder_decoder_is_refused() -> None:
    untyped: Any = transformers
    config = untyped.T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    refused(untyped.T5ForConditionalGeneration(config), "encoder-decoder")


def test_a_model_without_attention_is_refused() -> None:
    untyped: Any = transformers
    config = untyped.MambaConfig(vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=1)
    refused(untyped.MambaForCausalLM(config), "recurrent state")


def test_a_model_that_rotates_inside_its_attention_is_refused() -> None:
    untyped: Any = transformers
    config = untyped.GPTJConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, rotary_dim=8, n_positions=64)
    # It came to the attention interface later than the oldest transformers that is supported; refused it is everywhere.
    observable = untyped.GPTJForCausalLM._supports_attention_backend
    reason = (
        "GPTJAttention rotates its keys by a table of its own" if observable else "transformers' attention interface"
    )
    with pytest.raises(UnsupportedError, match=reason):
        new_cache(untyped.GPTJForCausalLM(config))
    model: Any = build("llama")
    del model.model.rotary_emb
    with pytest.raises(UnsupportedError, match="LlamaAttention rotates its keys by a table of its own"):
        new_cache(model)


def test_a_model_outside_the_attention_interface_is_refused() -> None:
    refused(build("stablelm"), "attention interface")


def test_a_model_of_sliding_layers_only_is_refused() -> None:
    refused(build("mistral_sliding"), "sliding window", "nothing to compress")


def test_multi_head_latent_attention_is_refused() -> None:
    refused(build("deepseek"), "multi-head latent attention")


def test_a_model_that_rotates_the_end_of_its_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # As any family would that does what DeepSeek does, and says nothing of it in its configuration.
    model = build("deepseek")
    monkeypatch.setattr("kvfw.model.inspect.layers.check_supported", lambda config, *_: fresh_layers(config))
    with pytest.raises(UnsupportedError, match="DeepseekV3Attention rotates other coordinates"):
        anatomy(model)


@pytest.mark.real
def test_the_embedded_models_rotation(smollm: LoadedModel) -> None:
    parts = anatomy(smollm.model)
    rope = parts.rotary.read(0)
    assert rope is not None
    assert (rope.rotary_dim, rope.layout, rope.scaling) == (64, "half", 1.0)
    close(rope.inv_freq, 100_000.0 ** -(torch.arange(0, 64, 2) / 64), atol=1e-6)
    assert len(parts.compressible) == 30
    assert {part.kv_heads for part in parts.layers} == {3}
