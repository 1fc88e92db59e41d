"""Bytes: nothing of the full cache survives compression, and one layer of it at most is alive at any time."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import Ragged, forward, generate, prompt, tiny
from kvfw.core.state.state import KVState
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.session.attach import attach
from kvfw.model.session.session import Session

#: A length that no other tensor has.
LENGTH = 157
KV_HEADS, DIM, LAYERS = 2, 16, 3
FULL_BYTES = 2 * KV_HEADS * LENGTH * DIM * 4
PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
COMPOSITIONS = (
    "snapkv(window=8)",
    "streaming(positions=cache)",
    "snapkv(window=84):0.8+ewmeans_pre(iters=2):0.2",
    "merge(merger=ewmeans(iters=2),space=post,weight=snapkv,bias=log)",
)


def full_size_bytes() -> int:
    """Bytes of all living storages that hold a key or value of every token of the prompt."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # The type, not isinstance: asking a lazy module for its class would import it.
        if issubclass(type(thing), Tensor) and thing.dim() == 4 and thing.shape[1:] == (KV_HEADS, LENGTH, DIM):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def held_bytes(cache: Any) -> int:
    return int(sum(layer.kv_bytes for layer in cache.layers))


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_nothing_of_the_full_cache_survives(composition: str) -> None:
    gc.collect()
    assert full_size_bytes() == 0
    with attach(tiny("llama"), composition, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(tiny("llama"), prompt(LENGTH), cache)
        # Not even in garbage that waits for collection.
        assert full_size_bytes() == 0
        slots = 12 + (LENGTH - 12) // 4
        assert cache.report().kv_bytes == LAYERS * slots * KV_HEADS * (DIM + DIM) * 4
        assert cache.report().overhead_bytes == LAYERS * slots * KV_HEADS * 3 * 4
        assert all(layer.captured.queries is None for layer in cache.compressed_layers())


def test_the_scan_finds_a_full_cache() -> None:
    # Otherwise the test above could not fail.
    gc.collect()
    with torch.inference_mode():
        out = tiny("llama")(input_ids=prompt(LENGTH), use_cache=True)
    assert full_size_bytes() == LAYERS * FULL_BYTES
    del out


def test_bytes_stay_exact_while_decoding() -> None:
    with attach(tiny("llama"), COMPOSITIONS[2], ratio=4, allocator=Ragged(), **PROTECTED) as cache:
        generate(tiny("llama"), prompt(LENGTH), 9, cache=cache)
    for i, layer in enumerate(cache.report().layers):
        assert cache.state(i).width == max(layer.slots)
        # No memory for the empty slots that the padded form has.
        assert sum(layer.slots) < cache.state(i).width * KV_HEADS
        exact = sum(layer.slots) * (DIM + DIM) * 4
        assert exact <= layer.kv_bytes <= 1.02 * exact


@pytest.mark.parametrize("composition", COMPOSITIONS[1:3])
def test_one_layer_at_most_is_full_while_the_prompt_runs(composition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    at_attention: list[int] = []
    at_hold: list[int] = []
    attend, hold = Session.attend, CompressedLayer.hold

    def watched_attend(self: Session, module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.shape[2] == LENGTH:
            at_attention.append(full_size_bytes())
        return attend(self, module, query, *args, **kwargs)

    def watched_hold(self: CompressedLayer, state: KVState, *args: Any) -> None:
        hold(self, state, *args)
        at_hold.append(full_size_bytes())

    monkeypatch.setattr(Session, "attend", watched_attend)
    monkeypatch.setattr(CompressedLayer, "hold", watched_hold)
    with attach(tiny("llama"), composition, ratio=4, **PROTECTED) as cache, torch.inference_mode():
        forward(tiny("llama"), prompt(LENGTH), cache)
        compressed = held_bytes(cache)
    assert at_attention == [FULL_BYTES] * LAYERS
    # When a layer has just been compressed, its full tensors are alive in the model's own frames still.
    assert at_hold == [FULL_BYTES] * LAYERS
    assert compressed == LAYERS * (12 + (LENGTH - 12) // 4) * KV_HEADS * (DIM + DIM) * 4


def test_grouped_heads_are_stored_once() -> None:
    # Storing per query head would take twice the memory here.
    with attach(tiny("llama"), "snapkv(window=8)", ratio=1, **PROTECTED) as cache, torch.inference_mode():
        forward(tiny("llama"), prompt(LENGTH), cache)
    assert cache.report().kv_bytes == LAYERS * FULL_BYTES
