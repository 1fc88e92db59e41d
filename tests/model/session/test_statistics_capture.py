"""Column sums and lexical features as a session captures them: against eager attention, in chunks, under attach."""

import pytest
import torch
from transformers import PreTrainedModel

from helpers.tiny_models import build, forward, prompt, text_ids
from kvfw.core.state.observation import Needs
from kvfw.errors import UnsupportedError
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import LoadedModel
from kvfw.model.run.prefill import prefill
from kvfw.model.session.attach import attach
from kvfw.tasks import haystack


def eager_column_sums(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """Sums ``[Hkv, L]`` by layer from the model's own attention matrices."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            attentions = model(ids, output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)
    kv_heads = model.config.num_key_value_heads
    return [a[0].sum(1).view(kv_heads, -1, a.shape[-1]).mean(1) for a in attentions]


def close_sums(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found[0], expected.float(), atol=2e-4, rtol=1e-4)


def test_column_sums_of_one_prefill_equal_eager_attention() -> None:
    model = build("llama")
    ids = prompt(90)
    filled = prefill(model, ids[0].tolist(), Needs(column_sums=frozenset({0})), sinks=2, recent=8)
    for layer, expected in enumerate(eager_column_sums(model, ids)):
        close_sums(filled.observations[layer].column_sums[0], expected)


@pytest.mark.real
@pytest.mark.parametrize("tokens", [200, 1000])
def test_column_sums_equal_eager_attention_on_the_real_model(smollm: LoadedModel, tokens: int) -> None:
    ids = text_ids(smollm, tokens)
    filled = prefill(smollm.model, ids[0].tolist(), Needs(column_sums=frozenset({0})), sinks=4, recent=84)
    for layer, expected in enumerate(eager_column_sums(smollm.model, ids)):
        close_sums(filled.observations[layer].column_sums[0], expected)


def test_h2o_under_attach_is_the_same_in_chunks_and_at_once() -> None:
    model = build("llama")
    ids = prompt(90)
    states = []
    for chunks in ([90], [40, 1, 49]):
        with attach(model, "h2o", ratio=4, sinks=2, recent=8, prompt_tokens=90) as cache, torch.inference_mode():
            for part in torch.split(ids, chunks, dim=1):
                model(part, **passed(model, cache), use_cache=True)
        states.append([cache.state(i).positions for i in range(len(cache.layers))])
        assert all(not layer.captured.sums for layer in cache.compressed_layers())
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.real
def test_pinned_under_attach_keeps_what_the_runner_keeps(smollm: LoadedModel) -> None:
    text = haystack.shipped()[5000:6200] + " The code is A7K2-93XQ. " + haystack.shipped()[6200:7000]
    ids = smollm.tokenizer(text, return_tensors="pt").input_ids
    from kvfw.core.compose.budget import amount
    from kvfw.core.compose.composition import parse
    from kvfw.core.compress.compressor import compressor

    bound = compressor(parse("pinned:0.65+ewmeans_post:0.35"), amount(ratio=8), sinks=4, recent=20)
    filled = prefill(smollm.model, ids[0].tolist(), bound.needs, sinks=4, recent=20, vocabulary=smollm.tokenizer)
    lexical = filled.observations[0].lexical
    assert lexical is not None
    rare = [str(smollm.tokenizer.decode([int(t)])) for t, r in zip(ids[0], lexical[0], strict=True) if r]
    assert {"7", "2", "9", "3"} <= {piece.strip() for piece in rare}
    expected = filled.compressed_states(bound)
    with attach(
        smollm.model, "pinned:0.65+ewmeans_post:0.35", ratio=8, sinks=4, recent=20, tokenizer=smollm.tokenizer
    ) as cache:
        forward(smollm.model, ids, cache)
    for layer, state in expected.items():
        assert torch.equal(cache.state(layer).positions[..., : state.width], state.positions)


def test_pinned_without_a_tokenizer_is_refused_at_attach() -> None:
    with pytest.raises(UnsupportedError, match="tokenizer="), attach(build("llama"), "pinned", ratio=4):
        pytest.fail("attached")
