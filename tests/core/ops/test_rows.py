"""Attention rows of the last queries, against loops over an explicit causal softmax."""

from dataclasses import replace

import pytest
import torch

from helpers.observations import SCALE, observe, random_row, with_hidden_padding
from helpers.slow_allocators import maps_of
from kvfw.core.ops.attention import window_attention
from kvfw.core.ops.rows import column_variances, row_entropies, window_rows
from kvfw.core.state.observation import Needs
from kvfw.errors import RunError


@pytest.mark.parametrize("window", [1, 4, 84])
@pytest.mark.parametrize("group", [1, 3])
def test_rows_are_those_of_eager_attention(window: int, group: int) -> None:
    rows = [random_row(length, seed, group=group) for seed, length in enumerate([11, 4, 7])]
    heads = list(window_rows(observe(rows, window=window)))
    assert len(heads) == 2
    for i, row in enumerate(rows):
        maps = maps_of(row.queries, row.keys, SCALE, window)
        for head, found in enumerate(heads):
            slow = torch.tensor(maps[head * group : (head + 1) * group])
            there = found[i, :, -slow.shape[1] :, 11 - row.length :]
            torch.testing.assert_close(there, slow, rtol=1e-5, atol=1e-6)
            assert float(found[i].sum()) == pytest.approx(float(there.sum()))


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_their_mean_is_the_windows_attention(capped: bool, sinks: bool) -> None:
    obs = observe([random_row(length, seed) for seed, length in enumerate([12, 9])], window=5)
    bias = obs.state.bias.clone()
    bias[:, :, -4] += 1.5
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0]) if sinks else None
    obs = replace(obs, state=replace(obs.state, bias=bias), softcap=0.7 if capped else None, sink_logits=logits)
    mean = torch.stack([rows.mean((1, 2)) for rows in window_rows(obs)], 1)
    torch.testing.assert_close(mean, window_attention(obs))


def test_keys_of_empty_slots_are_never_looked_at() -> None:
    obs = observe([random_row(length, seed) for seed, length in enumerate([12, 9])], window=5)
    assert all(bool(rows.isfinite().all()) for rows in window_rows(with_hidden_padding(obs)))


def test_undeclared_queries_are_refused() -> None:
    with pytest.raises(RunError, match="without declaring"):
        next(window_rows(observe([random_row(9, 0)]).narrowed(Needs())))


def test_the_entropy_of_a_row() -> None:
    rows = torch.tensor([[[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]])
    torch.testing.assert_close(row_entropies(rows)[0, 0], torch.tensor([2.0, 1.0]).double().log())


def test_the_variance_over_the_counted_queries() -> None:
    rows = torch.tensor([[[[0.9, 9.0], [0.1, 0.2], [0.3, 0.2]]]])
    counted = torch.tensor([[False, True, True]])
    torch.testing.assert_close(column_variances(rows, counted)[0, 0], torch.tensor([0.02, 0.0]).double())
    assert column_variances(rows, torch.tensor([[False, False, True]])).tolist() == [[[0.0, 0.0]]]
