"""What a cache knows of the model that made it: adapters are part of it, and weights elsewhere are named."""

from pathlib import Path
from typing import Any

import pytest

from helpers.adapters import LoraLinear, add_lora
from helpers.offloading import offload
from helpers.tiny_models import build, generate, prompt
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.fingerprint import fingerprint
from kvfw.model.cache.saved import load_cache, save_cache
from kvfw.model.session.attach import attach

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}


def compressed(model: Any) -> CompressedCache:
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        generate(model, prompt(60), 2, cache=cache)
    return cache


def switch(layers: list[LoraLinear], *, disabled: bool) -> None:
    for layer in layers:
        layer.disable_adapters = disabled


def rename(layers: list[LoraLinear], name: str) -> None:
    for layer in layers:
        layer.active_adapters = [name]


@pytest.mark.parametrize("disabled", [True, False])
def test_a_cache_is_refused_when_its_adapter_is_switched(disabled: bool, tmp_path: Path) -> None:
    model: Any = build("llama")
    layers = add_lora(model, "style")
    switch(layers, disabled=not disabled)
    cache = compressed(model)
    save_cache(cache, tmp_path / "a.kv")
    switch(layers, disabled=disabled)
    there, here = ("style in 3 modules", "none") if disabled else ("none", "style in 3 modules")
    says = f"adapters {there} there, {here} here"
    with pytest.raises(UnsupportedError, match=says), attach(model, cache=cache):
        pass
    with pytest.raises(UnsupportedError, match=says), attach(model, cache=cache.copy()):
        pass
    with pytest.raises(UnsupportedError, match=says):
        load_cache(model, tmp_path / "a.kv")
    switch(layers, disabled=not disabled)
    for same in (cache, load_cache(model, tmp_path / "a.kv")):
        with attach(model, cache=same):
            pass


def test_a_cache_saved_after_its_adapter_was_switched_off_is_still_the_adapters(tmp_path: Path) -> None:
    model: Any = build("llama")
    layers = add_lora(model, "style")
    cache = compressed(model)
    switch(layers, disabled=True)
    save_cache(cache, tmp_path / "a.kv")
    with pytest.raises(UnsupportedError, match="adapters style in 3 modules there, none here"):
        load_cache(model, tmp_path / "a.kv")


def test_an_adapters_weights_and_scale_are_part_of_the_fingerprint() -> None:
    plain, adapted, scaled, trained = (build("llama") for _ in range(4))
    add_lora(adapted, "style")
    add_lora(scaled, "style")[0].scaling["style"] = 0.2
    add_lora(trained, "style")[0].lora_B["style"].data += 1
    found = [fingerprint(model)["weights"] for model in (plain, adapted, scaled, trained)]
    assert len(set(found)) == 4


def test_an_adapter_merged_into_the_weights_is_seen() -> None:
    merged: Any = build("llama")
    layer = add_lora(merged, "style")[0]
    before = fingerprint(merged)["weights"]
    layer.base_layer.weight.data += layer.scaling["style"] * layer.lora_B["style"] @ layer.lora_A["style"]
    assert fingerprint(merged)["weights"] != before


def test_the_adapter_that_counts_is_the_one_active_when_the_prompt_is_read() -> None:
    model: Any = build("llama")
    layers = add_lora(model, "style")
    switch(layers, disabled=True)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        switch(layers, disabled=False)
        generate(model, prompt(60), 2, cache=cache)
    assert cache.adapters == "style in 3 modules"


def test_an_offloaded_model_generates_the_same_and_cannot_be_fingerprinted(tmp_path: Path) -> None:
    model: Any = build("llama")
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        expected = generate(model, prompt(60), 6, cache=cache).tolist()
    offload(model.model.layers)
    with attach(model, "snapkv", ratio=4, **PROTECTED) as cache:
        assert generate(model, prompt(60), 6, cache=cache).tolist() == expected
    with pytest.raises(UnsupportedError, match=r"weights of this model are offloaded \(model\.layers\.0"):
        save_cache(cache, tmp_path / "a.kv")


def test_offloaded_rotary_frequencies_are_refused_by_name() -> None:
    model: Any = build("llama")
    model.model.rotary_emb.to("meta")
    with pytest.raises(UnsupportedError, match="rotary frequencies of LlamaForCausalLM are offloaded"):
        compressed(model)
