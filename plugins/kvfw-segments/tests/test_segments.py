"""The merger cuts where it says, and keeps the contracts of mergers for ragged heads and rows."""

import pytest
import torch
from kvfw_segments import kvfw_parts
from kvfw_segments.merger import Segments
from kvfw_segments.space import Slow
from torch import Tensor

from kvfw import HeadTokens, KVState, exact_state


def tokens(weights: list[float]) -> HeadTokens:
    n, places = len(weights), torch.arange(float(len(weights)))
    return HeadTokens(
        torch.zeros(n, 2), torch.zeros(n, 2), places, torch.ones(n), torch.tensor(weights), torch.zeros(n)
    )


def random_state(lengths: list[int], heads: int = 2) -> tuple[KVState, Tensor]:
    """Rows of these lengths, padded on the left, and random weights."""
    g, n = torch.Generator().manual_seed(3), max(lengths)
    real = torch.stack([torch.arange(n) >= n - length for length in lengths])
    keys = torch.randn(len(lengths), heads, n, 4, generator=g)
    values = torch.randn(len(lengths), heads, n, 3, generator=g)
    state = exact_state(keys, values, (real.cumsum(-1) - 1).float(), real)
    return state, torch.rand(len(lengths), heads, n, generator=g) * state.valid


def test_even_runs_begin_where_the_formula_says() -> None:
    for n in range(1, 12):
        for count in range(1, n + 1):
            begins = [-(-k * n // count) for k in range(count)]
            expected = [sum(i >= begin for begin in begins) - 1 for i in range(n)]
            assert Segments().runs(tokens([1.0] * n), count).tolist() == expected


def test_runs_of_equal_weight_are_short_where_weight_is() -> None:
    by_weight = Segments(cut="weight")
    assert by_weight.runs(tokens([1.0, 1.0, 1.0, 1.0]), 2).tolist() == [0, 0, 1, 1]
    assert by_weight.runs(tokens([3.0, 1.0, 1.0, 1.0]), 2).tolist() == [0, 1, 1, 1]
    assert by_weight.runs(tokens([1.0, 1.0, 1.0, 3.0]), 2).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("weights", [[0.0] * 6, [9.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 9.0], [0, 0, 9.0, 9.0, 0, 0]])
def test_no_run_is_empty_wherever_the_weight_lies(weights: list[float]) -> None:
    for count in range(1, 7):
        runs = Segments(cut="weight").runs(tokens(weights), count).tolist()
        assert runs == sorted(runs)
        assert sorted(set(runs)) == list(range(count))


@pytest.mark.parametrize("cut", ["even", "weight"])
def test_contracts_hold_for_ragged_rows_and_unequal_budgets(cut: str) -> None:
    state, weights = random_state([9, 5])
    budget = torch.tensor([[4, 8], [0, 1]])
    merged = Segments.model_validate({"cut": cut}).merge(state, weights, budget)
    assert torch.equal(merged.valid.sum(-1), budget)
    # A head with a budget of 0 is given no token by the compressor; here it shows that nothing is invented.
    assert merged.mass.sum(-1).tolist() == [[9, 9], [0, 5]]
    for row, head in ((0, 0), (0, 1), (1, 1)):
        valid, at = merged.valid[row, head], merged.positions[row, head]
        assert valid.tolist() == sorted(valid.tolist())
        assert at[valid].tolist() == sorted(at[valid].tolist())
        assert at[~valid].tolist() == [-1.0] * int((~valid).sum())
    alone = merged.mass[0, 1] == 1
    assert int(alone.sum()) == 7
    for slot in alone.nonzero()[:, 0].tolist():
        source = int(merged.positions[0, 1, slot])
        assert torch.equal(merged.keys[0, 1, slot], state.keys[0, 1, source])
        assert torch.equal(merged.values[0, 1, slot], state.values[0, 1, source])


def test_a_run_is_its_weighted_mean() -> None:
    state, weights = random_state([6], heads=1)
    merged = Segments().merge(state, weights, torch.tensor([[2]]))
    a = weights[0, 0, :3, None].double()
    expected = (a * state.keys[0, 0, :3].double()).sum(0) / a.sum()
    torch.testing.assert_close(merged.keys[0, 0, 0].double(), expected)
    assert merged.positions[0, 0, 0] == pytest.approx(float((a[:, 0] * torch.arange(3)).sum() / a.sum()))


def test_the_entry_module_announces_both_parts() -> None:
    assert [(spec.kind.value, spec.name) for spec in kvfw_parts()] == [("merger", "segments"), ("space", "slow")]
    loaded: list[object] = [Segments, Slow]
    assert [spec.load() for spec in kvfw_parts()] == loaded
