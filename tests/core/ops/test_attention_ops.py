"""Window attention, pooling and ranking, against loops over an explicit causal softmax."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from helpers.observations import SCALE, observe, random_row
from helpers.slow import slow_pool, slow_topk, slow_window_attention
from kvfw.core.ops.attention import pool_middle, window_attention
from kvfw.core.ops.topk import highest, rank


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 3, 8, 84])
@pytest.mark.parametrize("lengths", [[11], [11, 4, 7]])
def test_window_attention_is_eager_attention(group: int, window: int, lengths: list[int]) -> None:
    rows = [random_row(length, seed, group=group) for seed, length in enumerate(lengths)]
    obs = observe(rows, window=window)
    found = window_attention(obs)
    for i, row in enumerate(rows):
        padding = max(lengths) - row.length
        assert bool((found[i, :, :padding] == 0).all())
        for head in range(2):
            queries = row.queries[head * group : (head + 1) * group]
            slow = slow_window_attention(queries, row.keys[head], SCALE, window)
            torch.testing.assert_close(found[i, head, padding:], torch.tensor(slow), rtol=1e-5, atol=1e-7)
    # Every query spends an attention of 1, however many of the window's queries are padding.
    torch.testing.assert_close(found.sum(-1), torch.ones(len(rows), 2))


def test_window_attention_of_half_precision_is_in_float32() -> None:
    row = random_row(9, 0, dtype=torch.bfloat16)
    found = window_attention(observe([row]))
    assert found.dtype == torch.float32
    slow = slow_window_attention(row.queries[:2].float(), row.keys[0].float(), SCALE, 8)
    torch.testing.assert_close(found[0, 0], torch.tensor(slow), rtol=1e-5, atol=1e-7)


def test_a_slot_of_log_mass_counts_as_many_tokens() -> None:
    obs = observe([random_row(9, 0)])
    bias = obs.state.bias.clone()
    bias[:, :, 4] = torch.tensor(3.0).log()
    plain, heavy = window_attention(obs), window_attention(replace(obs, state=replace(obs.state, bias=bias)))
    assert bool((heavy[:, :, 4] > plain[:, :, 4]).all())
    torch.testing.assert_close(heavy.sum(-1), torch.ones(1, 2))


@pytest.mark.parametrize("pool", ["avg", "max"])
@pytest.mark.parametrize("kernel", [1, 3, 7, 31])
@pytest.mark.parametrize(("sinks", "recent"), [(2, 3), (0, 0), (5, 0)])
def test_pooling_sees_the_middle_only(pool: str, kernel: int, sinks: int, recent: int) -> None:
    lengths = [14, 9]
    obs = observe([random_row(length, i) for i, length in enumerate(lengths)], sinks=sinks, recent=recent)
    # Protected slots hold a huge score, as sinks do: none of it may leak.
    scores = torch.rand(obs.protected.shape, generator=torch.Generator().manual_seed(1))
    found = pool_middle(scores.masked_fill(obs.protected, 1e6), obs, kernel, pool)
    for row, length in enumerate(lengths):
        start, end = 14 - length + sinks, 14 - recent
        for head in range(2):
            slow = slow_pool(scores[row, head, start:end].tolist(), kernel, pool)
            torch.testing.assert_close(found[row, head, start:end], torch.tensor(slow))
    assert bool((found[obs.protected] == 0).all())


scores_lists = st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -torch.inf, torch.inf]), min_size=1, max_size=12)


@settings(deadline=None)
@given(scores_lists, st.integers(0, 9999))
def test_rank_orders_the_eligible_with_ties_to_the_lowest(scores: list[float], seed: int) -> None:
    eligible = torch.rand(len(scores), generator=torch.Generator().manual_seed(seed)) < 0.6
    ranks = rank(torch.tensor(scores)[None, None], eligible[None, None])[0, 0].tolist()
    assert sorted(ranks) == list(range(len(scores)))
    slots = eligible.nonzero().flatten().tolist()
    for budget in range(len(slots) + 1):
        chosen = [i for i in range(len(scores)) if ranks[i] < budget]
        assert chosen == [slots[r] for r in slow_topk([scores[i] for i in slots], budget)]


@settings(deadline=None)
@given(scores_lists, st.integers(0, 9999), st.integers(0, 14), st.integers(0, 14))
def test_the_highest_are_those_of_the_first_ranks(scores: list[float], seed: int, one: int, other: int) -> None:
    """Heads of different budgets side by side; one of more than there are takes all."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.tensor([scores, scores])[None]
    both = both.gather(-1, torch.rand(both.shape, generator=generator).argsort(-1))
    eligible = torch.rand(both.shape, generator=generator) < 0.6
    budget = torch.tensor([[one, other]])
    expected = (rank(both, eligible) < budget[..., None]) & eligible
    assert torch.equal(highest(both, budget, eligible), expected)


def test_no_score_lets_a_protected_slot_in() -> None:
    scores = torch.tensor([[[torch.inf, torch.nan, -torch.inf, 1e38, -5.0]]])
    eligible = torch.tensor([[[False, False, True, False, True]]])
    assert rank(scores, eligible)[0, 0, [4, 2]].tolist() == [0, 1]
    assert highest(scores, torch.tensor([[1]]), eligible)[0, 0].tolist() == [False, False, False, False, True]


def test_heads_are_ranked_apart() -> None:
    scores = torch.tensor([[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]])
    eligible = torch.tensor([[[True, True, True], [False, True, True]]])
    assert rank(scores, eligible)[0].tolist() == [[2, 1, 0], [2, 0, 1]]


@pytest.mark.parametrize(("kernel", "pool"), [(0, "avg"), (4, "max"), (-1, "avg"), (3, "mean")])
def test_pooling_that_would_shift_or_is_unknown_is_refused(kernel: int, pool: str) -> None:
    obs = observe([random_row(9, seed=0)])
    with pytest.raises(ValueError, match="must be"):
        pool_middle(obs.state.mass, obs, kernel, pool)
