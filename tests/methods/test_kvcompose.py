"""kvcompose and its budgets: values computed by hand, and the formula in loops."""

from collections.abc import Sequence

import pytest
import torch

from helpers.layer_views import scored_layer
from helpers.observations import observe, random_row
from kvfw.core.compress.allocation import allocated
from kvfw.core.parts.part import is_comparable
from kvfw.core.state.observation import Columns
from kvfw.methods.allocators.composite import Composite
from kvfw.methods.scorers.kvcompose import KVCompose


def budgets(total: int, layers: Sequence[Sequence[Sequence[float]]]) -> list[list[int]]:
    views = [scored_layer(i, [heads]) for i, heads in enumerate(layers)]
    return [found[0].tolist() for found in allocated(Composite(), torch.tensor([total]), views)]


@pytest.mark.parametrize("part", [KVCompose(), KVCompose(reduce="sum", across=False)], ids=str)
def test_scores_are_those_of_the_formula(part: KVCompose) -> None:
    obs = observe([random_row(21, 1, group=3), random_row(15, 2, group=3)])
    scores = part.score(obs.narrowed(part.needs)).tolist()
    received = obs.columns[Columns(over=part.reduce, heads="each", source="repeat")].tolist()
    for row, heads in enumerate(received):
        means = [[sum(x) / 3 for x in zip(*heads[3 * h : 3 * h + 3], strict=True)] for h in range(2)]
        for head in range(2):
            for j in range(21):
                layer = (means[0][j] + means[1][j]) / 2 if part.across else 0.0
                assert scores[row][head][j] == pytest.approx(means[head][j] + layer, rel=1e-5, abs=1e-7)
    assert is_comparable(part)


def test_composite_tokens_of_all_layers_are_ranked_together() -> None:
    # Sorted and averaged: layer 0 has 8, 3, 1 and layer 1 has 5, 4, 2.
    layers = [[[1, 9, 0], [5, 2, 7]], [[4, 1, 3], [5, 6, 3]]]
    assert budgets(2, layers) == [[1, 1], [0, 0]]
    assert budgets(6, layers) == [[1, 1], [2, 2]]
    assert budgets(8, layers) == [[2, 2], [2, 2]]
    assert budgets(7, layers) == [[2, 1], [2, 2]]
    assert budgets(12, layers) == [[3, 3], [3, 3]]


def test_equal_composite_tokens_go_to_the_lower_rank_then_layer() -> None:
    assert budgets(3, [[[1, 1]], [[1, 1]]]) == [[2], [1]]
