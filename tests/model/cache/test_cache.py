"""The cache itself: what it reports, how its rows move, and when it refuses to be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import (
    Ragged,
    allocated,
    at_once,
    bound,
    close,
    forward,
    generate,
    parts,
    prompt,
    same_bits,
    snapshot,
    stored,
    tiny,
)
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.errors import UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.session.attach import attach
from kvfw.model.session.session import new_cache

PROTECTED: dict[str, Any] = {"sinks": 4, "recent": 8}
LENGTH, NEW = 90, 6
LOG = "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv,bias=log)"


def cache_of(composition: str, allocator: Allocator | None = None, name: str = "llama") -> CompressedCache:
    by = bound(composition)
    return snapshot(tiny(name), prompt(LENGTH), by).compressed(allocated(by, allocator))


@dataclass(frozen=True)
class ByLayer:
    """Layers differ, heads within one do not."""

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        each = total // sum(layer.kv_heads for layer in layers)
        shifts = range(-(len(layers) // 2), len(layers) // 2 + 1)
        return [(each + s)[:, None].expand(-1, layer.kv_heads) for s, layer in zip(shifts, layers, strict=True)]


# --- outside attach --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, NEW])
def test_a_plain_cache_works_outside_attach(step: int) -> None:
    model, ids = tiny("llama"), prompt(NEW, seed=2)
    cache = cache_of("snapkv(window=8)")
    with torch.inference_mode():
        logits = torch.cat([forward(model, part, cache) for part in torch.split(ids, step, dim=1)], dim=1)
    close(logits, at_once(model, ids, cache_of("snapkv(window=8)")))
    assert cache.get_seq_length() == LENGTH + NEW
    assert cache.state(0).positions[0, 0, -NEW:].tolist() == list(range(LENGTH, LENGTH + NEW))


def test_positions_outside_attach_follow_what_was_seen() -> None:
    # The slot kept is from the middle of the prompt; the next token nevertheless comes after its end.
    model = tiny("llama")
    by = bound("uniform", ratio=LENGTH, sinks=0, recent=0)
    cache = snapshot(model, prompt(LENGTH), by).compressed(by)
    with torch.inference_mode():
        forward(model, prompt(2, seed=2), cache)
    assert cache.state(0).positions[0, 0].tolist() == [LENGTH // 2 - 1, LENGTH, LENGTH + 1]


@pytest.mark.parametrize(("composition", "allocator"), [(LOG, None), ("snapkv(window=8)", Ragged())])
def test_biased_or_empty_slots_outside_attach_are_refused(composition: str, allocator: Allocator | None) -> None:
    cache = cache_of(composition, allocator)
    with torch.inference_mode(), pytest.raises(UnsupportedError, match=r"inside kvfw\.attach"):
        forward(tiny("llama"), prompt(1, seed=2), cache)


def test_layers_of_different_widths_outside_attach_are_refused() -> None:
    # transformers makes one mask for all layers: a crash in eager attention, or a mask of another layer's slots.
    cache = cache_of("snapkv(window=8)", ByLayer())
    assert [layer.slots for layer in cache.report().layers] == [(30, 30), (31, 31), (32, 32)]
    with torch.inference_mode(), pytest.raises(UnsupportedError, match="different numbers of slots"):
        forward(tiny("llama"), prompt(NEW, seed=2), cache)
    at_once(tiny("llama"), prompt(NEW, seed=2), cache)


def test_an_attached_cache_is_refused_once_the_block_is_left() -> None:
    model = tiny("llama")
    with attach(model, LOG, ratio=4, **PROTECTED) as cache:
        generate(model, prompt(LENGTH), 2, cache=cache)
    with torch.inference_mode(), pytest.raises(UnsupportedError, match=r"inside kvfw\.attach"):
        forward(model, prompt(1), cache)


def test_an_empty_cache_has_no_state() -> None:
    cache = new_cache(tiny("gemma3"))
    with pytest.raises(UnsupportedError, match="empty"):
        cache.state(1)
    with pytest.raises(UnsupportedError, match="sliding-window"):
        cache.state(0)
    assert cache.report().kv_bytes == 0


# --- rows ------------------------------------------------------------------------------------------------


def batch_cache() -> CompressedCache:
    """Two rows of different prompts, biased and uneven."""
    model = tiny("llama")
    with attach(model, LOG, ratio=4, allocator=Ragged(), **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH, rows=2), cache)
    return cache


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda cache: cache.reorder_cache(torch.tensor([1, 1])), [1, 1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
    ],
    ids=["swap", "duplicate", "repeat", "select"],
)
def test_everything_moves_with_its_row(change: Any, rows: list[int]) -> None:
    model, ids = tiny("llama"), prompt(NEW, seed=2, rows=2)
    before, cache = batch_cache(), batch_cache()
    change(cache)
    for i in range(3):
        for name, tensor in parts(cache.state(i)).items():
            assert torch.equal(tensor, parts(before.state(i))[name][rows]), name
        assert torch.equal(stored(cache, i)[0], cache.state(i).keys)
    expected = at_once(model, ids, before)
    assert not torch.equal(before.state(0).bias[0], before.state(0).bias[1])
    if rows != [0, 0, 1, 1]:
        ids = ids[rows]
        close(at_once(model, ids, cache), at_once(model, ids, only(rows)))
    else:
        close(at_once(model, ids[rows], cache), expected[rows])


def only(rows: list[int]) -> CompressedCache:
    """A batch of the given rows, compressed anew."""
    model = tiny("llama")
    with attach(model, LOG, ratio=4, allocator=Ragged(), **PROTECTED) as cache, torch.inference_mode():
        forward(model, prompt(LENGTH, rows=2)[rows], cache)
    return cache


def test_queries_kept_for_later_move_with_their_row() -> None:
    # Compressed again after beams were exchanged, the second turn is scored with the right beam's queries.
    model = tiny("llama")
    ids, turn = prompt(LENGTH, rows=2), prompt(6, seed=3, rows=2)
    states = []
    for swap in (True, False):
        order = torch.tensor([1, 0])
        # The window (20) reaches back over the second turn (6 tokens) into the first.
        cache: Any
        with (
            attach(model, "snapkv(window=20)", ratio=4, recompress=True, **PROTECTED) as cache,
            torch.inference_mode(),
        ):
            forward(model, ids if swap else ids[order], cache)
            if swap:
                cache.reorder_cache(order)
            forward(model, turn, cache)
        states.append(cache.state(2))
    assert torch.equal(states[0].positions, states[1].positions)


# --- the report ------------------------------------------------------------------------------------------


def test_the_report_says_what_is_held() -> None:
    model = tiny("gemma3")
    with attach(model, LOG, ratio=4, **PROTECTED) as cache:
        generate(model, prompt(LENGTH), NEW, cache=cache)
    report = cache.report()
    slots = 12 + (LENGTH - 12) // 4 + NEW - 1
    assert report.seen_tokens == LENGTH + NEW - 1
    for line, sliding in zip(report.layers, cache.is_sliding, strict=True):
        # transformers' sliding layer keeps the last 15 tokens of a window of 16.
        expected = 15 if sliding else slots
        assert line.slots == (expected, expected)
        assert line.compressed is not sliding
        # A key and a value of 16 float32 for each slot of 2 heads; position, mass and bias in float32.
        if not sliding:
            assert line.kv_bytes == slots * 2 * (16 + 16) * 4
            assert line.overhead_bytes == slots * 2 * 3 * 4
            assert line.compress_s > 0
        keys, values = stored(cache, line.layer)
        assert line.kv_bytes == keys.untyped_storage().nbytes() + values.untyped_storage().nbytes()
    assert report.kv_bytes == sum(line.kv_bytes for line in report.layers)
    text = str(report)
    assert text.count("(not compressed)") == 2
    assert f"{LENGTH + NEW - 1} tokens seen" in text
    assert len(text.splitlines()) == 6


def test_the_report_of_uneven_heads_counts_their_slots_and_bytes() -> None:
    cache = cache_of("snapkv(window=8)", Ragged())
    first = cache.report().layers[0]
    mean = 12 + (LENGTH - 12) // 4
    assert first.slots == (mean - 5, mean - 3)
    assert first.kv_bytes == (mean - 5 + mean - 3) * (16 + 16) * 4
    assert first.overhead_bytes == (mean - 5 + mean - 3) * 3 * 4


def test_counts_of_seen_and_stored() -> None:
    cache = cache_of("snapkv(window=8)")
    stored = 12 + (LENGTH - 12) // 4
    assert cache.get_seq_length() == LENGTH
    # The last of 5 new tokens stands at LENGTH + 4, and so does the last slot.
    assert cache.layers[0].get_mask_sizes(5) == (stored + 5, LENGTH - stored)
    assert cache.layers[0].get_max_length() == -1
    assert not getattr(cache, "is_croppable", False)
    with pytest.raises(UnsupportedError, match="cropped"):
        cache.crop(-1)


def test_growing_a_cache_leaves_its_sibling_alone() -> None:
    by = bound(LOG)
    taken = snapshot(tiny("gemma3"), prompt(LENGTH), by)
    first, second = taken.compressed(by), taken.compressed(by)
    at_once(tiny("gemma3"), prompt(NEW, seed=2), first)
    fresh = taken.compressed(by)
    assert all(same_bits(second.state(i), fresh.state(i)) for i in (1, 3))
    assert all(torch.equal(stored(second, i)[0], stored(fresh, i)[0]) for i in (0, 2))
    assert second.get_seq_length() == LENGTH


def test_a_report_of_several_rows_says_what_each_holds() -> None:
    model, mask = tiny("llama"), torch.ones(3, 60, dtype=torch.int64)
    mask[0, :59], mask[1, :30] = 0, 0
    with attach(model, "snapkv", ratio=2, sinks=4, recent=8) as cache, torch.inference_mode():
        forward(model, prompt(60, rows=3), cache, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    assert {layer.slots for layer in cache.report().layers} == {(1, 1, 21, 21, 36, 36)}
    assert "1 21 36 " in str(cache.report())
