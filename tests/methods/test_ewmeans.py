"""E-Means against its five steps read aloud."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch

from helpers.observations import (
    ROPE,
    SCALE,
    PromptRow,
    Slot,
    check_well_formed,
    observe,
    random_row,
    slots_of,
)
from helpers.slow import dot, mean, slow_clusters, slow_rotate, slow_snapkv, softmax
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.methods.mergers.ewmeans import EWMeans

SINKS, RECENT = 2, 3
INV_FREQ = ROPE.inv_freq.tolist()
Space = Literal["post", "pre"]


def compress(text: str, obs: Observation, budget: list[list[int]]) -> KVState:
    made = compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT)
    return made.compress(obs, torch.tensor(budget))


def slow_ewmeans(row: PromptRow, head: int, K: int, space: Space, iters: int, bias: str) -> list[Slot]:
    """Steps 1 to 5 on the middle of one head, in float64."""
    group = row.queries.shape[0] // row.keys.shape[0]
    scores = slow_snapkv(
        row.queries[head * group : (head + 1) * group].float(),
        row.keys[head].float(),
        SCALE,
        window=84,
        kernel=7,
        pool="avg",
        sinks=SINKS,
        recent=RECENT,
    )
    M = len(scores)
    a = [score + 1e-3 * sum(scores) / M for score in scores]
    keys = row.keys[head, SINKS : SINKS + M].tolist()
    values = row.values[head, SINKS : SINKS + M].tolist()
    places = [float(SINKS + i) for i in range(M)]
    x = keys
    if space == "pre":
        x = [slow_rotate(k, -p, INV_FREQ, 1 / ROPE.scaling, "half") for k, p in zip(keys, places, strict=True)]
    slots = []
    for members in slow_clusters(x, a, K, iters):
        (position,) = mean(a, [[p] for p in places], members)
        key = mean(a, x, members)
        if space == "pre":
            key = slow_rotate(key, position, INV_FREQ, ROPE.scaling, "half")
        if len(members) == 1:
            key = keys[members[0]]
        mass = float(len(members))
        slots.append(
            Slot(
                position,
                mass,
                math.log(mass) if bias == "log" else 0.0,
                tuple(key),
                tuple(mean(a, values, members)),
            )
        )
    return sorted(slots, key=lambda slot: slot.position)


@pytest.mark.parametrize("space", ["post", "pre"])
@pytest.mark.parametrize(("iters", "bias"), [(8, "none"), (1, "log"), (3, "none")])
def test_ewmeans_follows_its_steps(space: Space, iters: int, bias: str) -> None:
    rows = [random_row(length, seed) for seed, length in enumerate([26, 18])]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=84)
    budget = [[5, 9], [1, 12]]
    state = compress(f"ewmeans_{space}(iters={iters},bias={bias})", obs, budget)
    check_well_formed(state)
    for i, row in enumerate(rows):
        for head in range(2):
            found = slots_of(state, i, head)[SINKS:-RECENT]
            wanted = slow_ewmeans(row, head, budget[i][head], space, iters, bias)
            assert [slot.mass for slot in found] == [slot.mass for slot in wanted]
            for got, slow in zip(found, wanted, strict=True):
                for name in ("position", "bias", "key", "value"):
                    torch.testing.assert_close(
                        torch.tensor(getattr(got, name)), torch.tensor(getattr(slow, name)), rtol=0, atol=1e-5
                    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("space", ["post", "pre"])
def test_clusters_of_one_token_keep_it_bit_for_bit(dtype: torch.dtype, space: Space) -> None:
    row = random_row(24, 5, dtype=dtype)
    obs = observe([row], sinks=SINKS, recent=RECENT, window=84)
    state = compress(f"ewmeans_{space}", obs, [[14, 16]])
    assert state.keys.dtype == state.values.dtype == dtype
    for head in range(2):
        middle = slots_of(state, 0, head)[SINKS:-RECENT]
        alone = [slot for slot in middle if slot.mass == 1]
        assert len(alone) >= 5
        assert len(alone) < len(middle)
        for slot in alone:
            p = int(slot.position)
            assert p == slot.position
            assert slot.key == tuple(row.keys[head, p].tolist())
            assert slot.value == tuple(row.values[head, p].tolist())


def test_the_two_spaces_differ() -> None:
    obs = observe([random_row(24, 5)], sinks=SINKS, recent=RECENT, window=84)
    pre, post = (compress(f"ewmeans_{space}", obs, [[5, 5]]) for space in ("pre", "post"))
    assert not torch.allclose(pre.keys, post.keys, atol=1e-2)


def test_without_rope_the_spaces_are_one() -> None:
    obs = observe([random_row(24, 5)], sinks=SINKS, recent=RECENT, window=84, rope=None)
    pre, post = (compress(f"ewmeans_{space}", obs, [[5, 5]]) for space in ("pre", "post"))
    assert torch.equal(pre.keys, post.keys)


def test_blocks_are_clustered_apart() -> None:
    row = random_row(25, 2)
    obs = observe([row], sinks=SINKS, recent=RECENT, window=84)
    state = compress("ewmeans_post(block=5)", obs, [[8, 8]])
    # Blocks of 5 tokens, 2 slots each: every cluster lies in one block, so a block's masses add up to 5.
    for head in range(2):
        blocks = [0.0] * 4
        for slot in slots_of(state, 0, head)[SINKS:-RECENT]:
            blocks[int(slot.position - SINKS) // 5] += slot.mass
        assert blocks == [5, 5, 5, 5]


def attention_output(query: list[float], slots: list[Slot]) -> list[float]:
    weights = softmax([SCALE * dot(query, slot.key) + slot.bias for slot in slots])
    return [sum(w * slot.value[d] for w, slot in zip(weights, slots, strict=True)) for d in range(5)]


def test_log_bias_makes_merging_equal_slots_exact() -> None:
    """A middle of 12 tokens with 4 different (key, value) pairs, each three times, merged into 4 slots."""
    row = random_row(17, 1)
    kinds = torch.arange(12) % 4
    keys, values = row.keys.clone(), row.values.clone()
    keys[:, SINKS : SINKS + 12] = keys[:, SINKS + kinds]
    values[:, SINKS : SINKS + 12] = values[:, SINKS + kinds]
    obs = observe([replace(row, keys=keys, values=values)], sinks=SINKS, recent=RECENT, window=84)
    merged = compress("ewmeans_post(bias=log)", obs, [[4, 4]])
    plain = compress("ewmeans_post", obs, [[4, 4]])
    for head in range(2):
        full = slots_of(obs.state, 0, head)
        assert [slot.mass for slot in slots_of(merged, 0, head)[SINKS:-RECENT]] == [3, 3, 3, 3]
        query = row.queries[2 * head, -1].tolist()
        wanted = torch.tensor(attention_output(query, full))
        torch.testing.assert_close(
            torch.tensor(attention_output(query, slots_of(merged, 0, head))), wanted, rtol=0, atol=1e-6
        )
        off = torch.tensor(attention_output(query, slots_of(plain, 0, head)))
        assert not torch.allclose(off, wanted, atol=1e-3)


def test_tokens_that_nobody_looks_at_are_averaged_plainly() -> None:
    """Where all weights are 0 the means are plain ones, and nothing is divided by zero."""
    state = observe([random_row(16, 0)]).state
    merged = EWMeans().merge(state, torch.zeros_like(state.mass), torch.tensor([[1, 1]]))
    assert merged.mass.tolist() == [[[16], [16]]]
    assert merged.positions.tolist() == [[[7.5], [7.5]]]
    torch.testing.assert_close(merged.keys, state.keys.mean(2, keepdim=True), rtol=0, atol=1e-6)
    torch.testing.assert_close(merged.values, state.values.mean(2, keepdim=True), rtol=0, atol=1e-6)


def test_masses_of_merged_slots_add_up() -> None:
    state = observe([random_row(6, 0)]).state
    heavy = replace(state, mass=state.mass * torch.tensor([1.0, 5, 1, 1, 2, 1]))
    merged = EWMeans().merge(heavy, torch.ones_like(state.mass), torch.tensor([[2, 3]]))
    assert merged.mass.sum(-1).tolist() == [[11, 11]]
    assert bool((merged.positions.diff(dim=-1) >= 0).all())
