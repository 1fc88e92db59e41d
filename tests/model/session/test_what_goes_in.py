"""What is fed to a cache in a block: other prompts, images, calls without a cache, models that changed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from helpers.tiny_models import build, forward, generate, prompt, tiny
from kvfw.errors import PromptError, UnsupportedError
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.compat.versions import passed
from kvfw.model.load.load import load_model
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 60, 4


# --- another prompt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_second_longer_prompt_is_refused(name: str, chunk: int | None) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        first = generate(model, ids, NEW, cache=cache)
        with pytest.raises(PromptError, match=r"do not begin with the 63 tokens .* row 0 differs from token 0 on"):
            generate(model, prompt(LENGTH + 30, seed=7), NEW, cache=cache, prefill_chunk_size=chunk)
        # The prompt's own continuation is none the worse for it.
        generate(model, torch.cat((ids, first, prompt(9)), dim=1), NEW, cache=cache)


def test_a_padded_batch_is_compared_where_there_is_text() -> None:
    model, ids = tiny("llama"), prompt(LENGTH, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        first = generate(model, ids, NEW, cache=cache, attention_mask=mask)
        so_far = torch.cat((ids, first, prompt(9, rows=2)), dim=1)
        so_far[1, :9] = 77
        mask = torch.cat((mask, torch.ones(2, NEW + 9, dtype=torch.int64)), dim=1)
        generate(model, so_far, 1, cache=cache, attention_mask=mask)
        so_far = torch.cat((so_far, prompt(9, seed=4, rows=2)), dim=1)
        so_far[1, 20] += 1
        mask = torch.cat((mask, torch.ones(2, 9, dtype=torch.int64)), dim=1)
        with pytest.raises(PromptError, match="row 1 differs from token 20 on"):
            generate(model, so_far, 1, cache=cache, attention_mask=mask)


def test_ids_of_one_row_are_those_of_all_its_answers() -> None:
    model, ids = tiny("llama"), prompt(LENGTH)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(model, ids, cache)
        cache.batch_repeat_interleave(3)
        longer = torch.cat((ids, prompt(5)), dim=1)
        out = generate(model, longer, NEW, cache=cache, num_return_sequences=3, do_sample=True)
    assert out.shape == (3, NEW)


def test_a_pipeline_over_several_prompts_is_refused_at_the_second(tiny_folder: Path) -> None:
    loaded = load_model(str(tiny_folder), device="cpu")
    untyped: Any = transformers
    write = untyped.pipeline("text-generation", model=loaded.model, tokenizer=loaded.tokenizer)
    texts = ["one two three " * 9, "four five six " * 20]
    with attach(loaded.model, "snapkv", ratio=2, **PROTECTED) as cache:
        write(texts[:1], max_new_tokens=NEW, **passed(loaded.model, cache))
        cache.reset()
        with pytest.raises(PromptError, match="every prompt of a pipeline"):
            write(texts, max_new_tokens=NEW, **passed(loaded.model, cache))


def test_generate_is_restored_whatever_block_ends_first() -> None:
    from kvfw.model.compat.generation import watched_generate

    model, told = build("llama"), list[str]()

    def note(name: str, given: Any) -> None:
        told.append(name)

    blocks = [watched_generate(model, functools.partial(note, n)) for n in "ab"]
    for block in blocks:
        block.__enter__()
    generate(model, prompt(9), 1)
    blocks[0].__exit__(None, None, None)
    generate(model, prompt(9), 1)
    blocks[1].__exit__(None, None, None)
    generate(model, prompt(9), 1)
    assert told == ["a", "b", "b"]
    assert "generate" not in model.__dict__
    own = model.__dict__["generate"] = model.generate
    with watched_generate(model, functools.partial(note, "c")):
        generate(model, prompt(9), 1)
    assert told[-1] == "c"
    assert model.__dict__["generate"] is own


# --- other than text -------------------------------------------------------------------------------------


def test_positions_that_differ_from_axis_to_axis_are_refused() -> None:
    model, ids = tiny("qwen3_vl"), prompt(LENGTH)
    text = torch.arange(LENGTH)[None, None].repeat(4, 1, 1)
    image = text.clone()
    image[2, :, 10:30] = 10
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        with pytest.raises(UnsupportedError, match="position_ids differ from axis to axis"):
            forward(model, ids, cache, position_ids=image)
        forward(model, ids, cache, position_ids=text)
        with pytest.raises(UnsupportedError, match="position_ids differ from axis to axis"):
            forward(model, prompt(1), cache, position_ids=torch.tensor([60, 50, 50, 50])[:, None, None])


def test_images_are_refused_by_name() -> None:
    model = tiny("qwen3_vl")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
        with pytest.raises(UnsupportedError, match="pixel_values: kvfw compresses prompts of text only"):
            forward(model, prompt(LENGTH), cache, pixel_values=torch.zeros(4, 8))
        forward(model, prompt(LENGTH), cache)


# --- models and settings that changed --------------------------------------------------------------------


def test_a_model_left_without_use_cache_by_training_is_told_so() -> None:
    model, ids = build("llama"), prompt(LENGTH)
    assert model.generation_config is not None
    model.generation_config.use_cache = False
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        with pytest.raises(UnsupportedError, match=r"use_cache is False.*generation_config\.use_cache = True"):
            generate(model, ids, NEW, cache=cache)
        assert generate(model, ids, NEW, cache=cache, use_cache=True).shape == (1, NEW)


def test_an_attention_implementation_changed_inside_a_block_is_named() -> None:
    model, ids = build("llama"), prompt(LENGTH)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        generate(model, ids[:, :-1], 1, cache=cache)
        model.set_attn_implementation("eager")
        with pytest.raises(UnsupportedError, match="attention implementation was changed to 'eager' inside the block"):
            generate(model, ids, NEW, cache=cache)
    assert model.config._attn_implementation == "sdpa"


def test_keys_of_a_compressed_layer_are_not_assigned() -> None:
    model, caches = tiny("llama"), []
    for seed in (1, 2):
        with attach(model, "snapkv", ratio=4, **PROTECTED) as cache, torch.inference_mode():
            forward(model, prompt(LENGTH, seed=seed), cache)
        caches.append(cache)
    layer, other = (cache.layers[0] for cache in caches)
    assert isinstance(layer, CompressedLayer)
    assert isinstance(other, CompressedLayer)
    assert layer.keys is not None
    assert other.keys is not None
    untyped: Any = layer
    with pytest.raises(UnsupportedError, match=r"keys of a compressed layer cannot be assigned.*one padded batch"):
        untyped.keys = torch.cat((layer.keys, other.keys))
    assert len(caches[0].report().layers[0].slots) == len(layer.keys[0]) == 2
    # Layers of another cache, of other rows, are noticed too.
    other.batch_repeat_interleave(2)
    caches[0].layers[0] = other
    with pytest.raises(UnsupportedError, match="come from several caches"), attach(model, cache=caches[0]):
        pytest.fail("attached")


@pytest.mark.parametrize("given", ["tokenizer", "probe_ids"])
def test_a_probe_of_embeddings_is_refused_in_one_line(given: str, tiny_folder: Path) -> None:
    loaded = load_model(str(tiny_folder), device="cpu")
    options: dict[str, Any] = {"tokenizer": loaded.tokenizer} if given == "tokenizer" else {"probe_ids": [5, 6, 7]}
    embeds = loaded.model.get_input_embeddings()(prompt(LENGTH))
    with attach(loaded.model, "kvzip", ratio=4, **options, **PROTECTED) as cache:
        untyped: Any = loaded.model
        with pytest.raises(UnsupportedError, match=r"probes the model .*; call the model with input_ids$") as caught:
            untyped.generate(inputs_embeds=embeds, **passed(loaded.model, cache), max_new_tokens=2)
        assert "\n" not in str(caught.value)
        assert cache.get_seq_length() == 0
        # Nothing was read of it: the same block takes the prompt's ids.
        generate(loaded.model, prompt(LENGTH), 2, cache=cache)
