"""SnapKV, uniform and streaming against their formulas."""

import pytest
import torch
from torch import Tensor

from helpers.observations import ROPE, SCALE, PromptRow, observe, random_row, slots_of
from helpers.slow import slow_received, slow_rotate, slow_snapkv, slow_topk
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.methods.selectors.evenly import Evenly

SINKS, RECENT = 2, 3


def compress(text: str, obs: Observation, budget: int | Tensor) -> KVState:
    """One budget for all heads, or one per row and head."""
    each = torch.full(obs.protected.shape[:2], budget) if isinstance(budget, int) else budget
    return compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT).compress(obs, each)


def kept_positions(state: KVState, row: int, head: int) -> list[int]:
    return [int(slot.position) for slot in slots_of(state, row, head)]


def with_ends(middle: list[int], length: int) -> list[int]:
    return [*range(SINKS), *middle, *range(length - RECENT, length)]


def slow_kept(row: PromptRow, head: int, budget: int, window: int, kernel: int, pool: str) -> list[int]:
    group = row.queries.shape[0] // row.keys.shape[0]
    scores = slow_snapkv(
        row.queries[head * group : (head + 1) * group],
        row.keys[head],
        SCALE,
        window=window,
        kernel=kernel,
        pool=pool,
        sinks=SINKS,
        recent=RECENT,
    )
    return with_ends([SINKS + r for r in slow_topk(scores, budget)], row.length)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("pool", ["avg", "max"])
@pytest.mark.parametrize(("window", "kernel"), [(1, 1), (4, 3), (8, 7), (84, 5)])
def test_snapkv_keeps_what_the_formula_keeps(group: int, pool: str, window: int, kernel: int) -> None:
    rows = [random_row(length, seed, group=group) for seed, length in enumerate([21, 15])]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=window)
    state = compress(f"snapkv(window={window},kernel={kernel},pool={pool})", obs, 6)
    for i, row in enumerate(rows):
        for head in range(2):
            assert kept_positions(state, i, head) == slow_kept(row, head, 6, window, kernel, pool)


def test_snapkv_keeps_per_kv_head() -> None:
    """Heads of one layer keep other tokens, and no KV head is repeated for its query heads."""
    state = compress("snapkv", observe([random_row(30, 3, group=4)], sinks=SINKS, recent=RECENT), 6)
    assert state.keys.shape[1] == 2
    assert kept_positions(state, 0, 0) != kept_positions(state, 0, 1)


def evenly(scores: Tensor, budget: Tensor, eligible: Tensor) -> Tensor:
    """The selector looks at the scores alone, so slots without content will do."""
    none = torch.zeros(*scores.shape, 1)
    state = KVState(none, none, scores, torch.ones_like(scores), torch.zeros_like(scores))
    return Evenly().select(scores, budget, eligible, Observation(state, ~eligible, 1.0, 0))


def slow_even(M: int, K: int) -> list[int]:
    return [(M - 1) // 2] if K == 1 else [j * (M - 1) // (K - 1) for j in range(K)]


def test_even_ranks_for_all_small_sizes() -> None:
    most = 40
    for M in range(1, most + 1):
        # PromptRow K - 1 asks for K of M; the eligible slots are scattered, ascending scores.
        eligible = torch.zeros(M, 1, most + 8, dtype=torch.bool)
        slots = torch.arange(M) + (torch.arange(M) % 5 == 4).cumsum(0).clamp(max=8)
        eligible[:, :, slots] = True
        scores = torch.arange(most + 8, dtype=torch.float32).expand(M, 1, -1)
        chosen = evenly(scores, torch.arange(1, M + 1)[:, None], eligible)
        for K in range(1, M + 1):
            assert chosen[K - 1, 0].nonzero().flatten().tolist() == slots[slow_even(M, K)].tolist(), (M, K)


def test_even_ranks_are_ranks_of_the_scores() -> None:
    scores = torch.tensor([[[5.0, 3.0, 4.0, 1.0, 2.0]]])
    chosen = evenly(scores, torch.tensor([[3]]), torch.ones(1, 1, 5, dtype=torch.bool))
    # Ascending 1 2 3 4 5: ranks 0, 2, 4 are the scores 1, 3, 5.
    assert chosen[0, 0].tolist() == [True, True, False, True, False]


def test_none_are_chosen_where_none_are_asked_for() -> None:
    chosen = evenly(torch.zeros(1, 2, 4), torch.tensor([[0, 2]]), torch.tensor([[[False] * 4, [True] * 4]]))
    assert chosen[0].sum(-1).tolist() == [0, 2]


def test_uniform_is_evenly_spaced_over_the_middle() -> None:
    lengths = [25, 19]
    obs = observe([random_row(n, i) for i, n in enumerate(lengths)], sinks=SINKS, recent=RECENT)
    budget = torch.tensor([[1, 4], [7, 13]])
    state = compress("uniform", obs, budget)
    for row, length in enumerate(lengths):
        for head in range(2):
            ranks = slow_even(length - SINKS - RECENT, int(budget[row, head]))
            assert kept_positions(state, row, head) == with_ends([SINKS + r for r in ranks], length)


def test_streaming_keeps_the_contiguous_tail() -> None:
    lengths = [25, 19]
    obs = observe([random_row(n, i) for i, n in enumerate(lengths)], sinks=SINKS, recent=RECENT)
    state = compress("streaming", obs, 5)
    for row, length in enumerate(lengths):
        tail = range(length - RECENT - 5, length - RECENT)
        assert kept_positions(state, row, 0) == with_ends(list(tail), length)


def test_streaming_by_cache_position_turns_keys_to_a_closed_row() -> None:
    lengths = [25, 19]
    rows = [random_row(n, i) for i, n in enumerate(lengths)]
    obs = observe(rows, sinks=SINKS, recent=RECENT)
    budget = torch.tensor([[5, 8], [5, 2]])
    original, moved = compress("streaming", obs, budget), compress("streaming(positions=cache)", obs, budget)
    inv_freq = ROPE.inv_freq.tolist()
    for row, length in enumerate(lengths):
        for head in range(2):
            before, after = slots_of(original, row, head), slots_of(moved, row, head)
            count = SINKS + RECENT + int(budget[row, head])
            assert [slot.position for slot in after] == list(range(length - count, length))
            for old, new in zip(before, after, strict=True):
                # The stored key turned by the difference of positions; the attention factor is in it already.
                turned = slow_rotate(old.key, new.position - old.position, inv_freq, 1.0, "half")
                torch.testing.assert_close(torch.tensor(new.key), torch.tensor(turned), rtol=0, atol=2e-6)
                assert (new.value, new.mass, new.bias) == (old.value, 1.0, 0.0)
            # The tail stays where it was, bit for bit.
            assert after[SINKS:] == before[SINKS:]


def test_streaming_by_cache_position_needs_no_rope() -> None:
    obs = observe([random_row(20, 0)], sinks=SINKS, recent=RECENT, rope=None)
    state = compress("streaming(positions=cache)", obs, 4)
    assert kept_positions(state, 0, 0) == with_ends([13, 14, 15, 16], 20)


@pytest.mark.parametrize("norm", ["exposure", "none"])
@pytest.mark.parametrize("local", [0, 4, 30])
def test_h2o_divides_by_the_queries_that_see_a_key(norm: str, local: int) -> None:
    rows = [random_row(length, seed) for seed, length in enumerate([21, 15])]
    obs = observe(rows, sinks=SINKS, recent=RECENT, locals_=(0, local))
    state = compress(f"h2o(norm={norm},local={local})", obs, 6)
    for i, row in enumerate(rows):
        for head in range(2):
            sums = slow_received(row.queries[2 * head : 2 * head + 2], row.keys[head], SCALE, local)
            seen_by = [row.length - j - local for j in range(row.length)]
            scores = [(c if norm == "none" else c / n) if n > 0 else 0.0 for c, n in zip(sums, seen_by, strict=True)]
            chosen = slow_topk(scores[SINKS : row.length - RECENT], 6)
            assert kept_positions(state, i, head) == with_ends([SINKS + r for r in chosen], row.length)


@pytest.mark.parametrize("strength", [0.0, 0.5, 10.0])
def test_pinned_raises_rare_tokens(strength: float) -> None:
    rows = [random_row(length, seed) for seed, length in enumerate([21, 15])]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=84)
    state = compress(f"pinned(strength={strength})", obs, 6)
    for i, row in enumerate(rows):
        for head in range(2):
            scores = slow_snapkv(
                row.queries[2 * head : 2 * head + 2],
                row.keys[head],
                SCALE,
                window=84,
                kernel=7,
                pool="avg",
                sinks=SINKS,
                recent=RECENT,
            )
            rare = row.rare[SINKS : row.length - RECENT].tolist()
            raised = [(1 + strength * r) * score for r, score in zip(rare, scores, strict=True)]
            chosen = slow_topk(raised, 6)
            assert kept_positions(state, i, head) == with_ends([SINKS + r for r in chosen], row.length)
