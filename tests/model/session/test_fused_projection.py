"""Models whose keys and values are views of one larger projection: only the cache's own bytes are held and counted."""

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from helpers.tiny_models import bound, build, prompt, snapshot
from kvfw.model.compat.versions import passed
from kvfw.model.session.attach import attach


def fused(name: str) -> PreTrainedModel:
    if name == "gpt2":
        return build("gpt2")
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=211,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: PreTrainedModel = Phi3ForCausalLM(config).eval()
    return model


@pytest.mark.parametrize("name", ["gpt2", "phi3"])
def test_the_full_cache_is_as_large_as_its_slots(name: str) -> None:
    model = fused(name)
    filled = snapshot(model, prompt(60), bound("streaming"))
    report = filled.full().report()
    for index, layer in enumerate(report.layers):
        state = filled.observations[index].state
        assert layer.kv_bytes == (state.keys.numel() + state.values.numel()) * state.keys.element_size()


def test_attach_that_compresses_nothing_warns() -> None:
    model = build("llama")
    with pytest.warns(UserWarning, match="no prompt went through it"), attach(model, "snapkv", ratio=4):
        model(prompt(60))
    warned = pytest.warns(UserWarning, match="did not end in it")
    with warned, attach(model, "snapkv", ratio=4, prompt_tokens=100) as cache:
        model(prompt(60), **passed(model, cache), use_cache=True)
