"""Budgets that differ by layer and head are real: fewer slots are stored, and what is stored is attended to rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    kept,
    one_by_one,
    prompt,
    same_bits,
    snapshot,
    tiny,
)
from kvfw.core.contracts.parts import Allocator, LayerView
from kvfw.model.session.attach import attach

LENGTH, NEW = 90, 12
SINKS, RECENT = 4, 8
MEAN = (LENGTH - SINKS - RECENT) // 4
COMPOSITIONS = (
    "snapkv(window=8)",
    "streaming(positions=cache)",
    "snapkv(window=16):0.8+ewmeans_pre(iters=2):0.2",
    "merge(merger=ewmeans(iters=2),space=pre,weight=snapkv,bias=log)",
)


@dataclass
class Recorder:
    """Divides as another allocator does, and remembers what it was asked."""

    inner: Allocator
    asked: list[tuple[list[int], list[tuple[int, int, list[int]]]]] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> Sequence[Tensor]:
        self.asked.append((total.tolist(), [(layer.index, layer.kv_heads, layer.middle.tolist()) for layer in layers]))
        self.given = list(self.inner.allocate(total, layers))
        return self.given


def test_a_test_allocator_gives_away_what_there_is() -> None:
    budgets = Ragged().allocate(torch.tensor([6 * MEAN]), [LayerView(i, 2, torch.tensor([99])) for i in range(3)])
    flat = torch.cat(budgets, dim=1)[0].tolist()
    assert sum(flat) == 6 * MEAN
    assert len(set(flat)) == 6


@pytest.mark.parametrize(
    ("name", "composition"),
    [*(("llama", c) for c in COMPOSITIONS), ("gemma3", COMPOSITIONS[-1]), ("mha", COMPOSITIONS[0])],
)
def test_every_head_holds_exactly_its_budget(name: str, composition: str) -> None:
    model, ids = tiny(name), prompt(LENGTH)
    by = bound(composition)
    recorder = Recorder(Ragged())
    protected: dict[str, Any] = {"sinks": SINKS, "recent": RECENT}
    with attach(model, composition, ratio=4, allocator=recorder, **protected) as cache, torch.inference_mode():
        forward(model, ids, cache)
    layers = [i for i, sliding in enumerate(cache.is_sliding) if not sliding]
    heads = cache.state(layers[0]).keys.shape[1]
    # Asked once for all layers, those with a sliding window left out; the others keep the model's own numbers.
    views = [(i, heads, [LENGTH - SINKS - RECENT]) for i in layers]
    assert recorder.asked == [([MEAN * heads * len(layers)], views)]
    counts = set()
    for i, budget in zip(layers, recorder.given, strict=True):
        state = cache.state(i)
        assert state.valid.sum(-1).tolist() == (SINKS + RECENT + budget).tolist()
        counts |= set(budget[0].tolist())
        for head in range(heads):
            positions = kept(state, 0, head)
            assert positions == sorted(positions)
            assert positions[-RECENT:] == [*range(LENGTH - RECENT, LENGTH)]
            # Empty slots stand on the left, and weigh nothing.
            empty = state.width - len(positions)
            assert state.mass[0, head, :empty].tolist() == [0.0] * empty
            assert state.positions[0, head, :empty].tolist() == [-1.0] * empty
        # Memory is that of the widest head, not of the prompt.
        assert state.width == SINKS + RECENT + int(budget.max())
    assert len(counts) > 2
    states = snapshot(model, ids, by).compressed_states(allocated(by, Ragged()))
    assert all(same_bits(cache.state(i), states[i]) for i in layers)


@pytest.mark.parametrize(("name", "composition"), [*(("llama", c) for c in COMPOSITIONS), ("gemma3", COMPOSITIONS[-1])])
def test_a_continuation_over_uneven_heads(name: str, composition: str) -> None:
    model, ids = tiny(name), prompt(NEW, seed=2)
    by = bound(composition)
    taken = snapshot(model, prompt(LENGTH), by)
    states = taken.compressed_states(allocated(by, Ragged()))
    close(at_once(model, ids, taken.cache_of(states)), one_by_one(model, ids, taken.cache_of(states)))


def test_a_head_without_budget_keeps_its_protected_tokens() -> None:
    @dataclass(frozen=True)
    class AllToTheFirstHead:
        def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
            budgets = [torch.zeros(len(total), layer.kv_heads, dtype=torch.int64) for layer in layers]
            budgets[0][:, 0] = total.clamp(max=70)
            budgets[1][:, 0] = total - budgets[0][:, 0]
            return budgets

    model, ids = tiny("llama"), prompt(NEW, seed=2)
    for composition in COMPOSITIONS:
        by = bound(composition)
        taken = snapshot(model, prompt(LENGTH), by)
        states = taken.compressed_states(allocated(by, AllToTheFirstHead()))
        assert states[0].valid.sum(-1).tolist() == [[SINKS + RECENT + 70, SINKS + RECENT]]
        assert states[2].valid.sum(-1).tolist() == [[SINKS + RECENT] * 2]
        close(at_once(model, ids, taken.cache_of(states)), one_by_one(model, ids, taken.cache_of(states)))
