"""What a rule of clusters may answer."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvfw.core.ops.clusters import HeadTokens, merge_clusters
from kvfw.core.state.state import KVState, exact_state


def four_tokens() -> KVState:
    x = torch.arange(16.0).view(1, 2, 4, 2)
    return exact_state(x, x, torch.arange(4.0)[None], torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 1, 1, 2], "into cluster 2: they are numbered 0 to 1"),
        ([0, -1, 1, 1], "into cluster -1: they are numbered 0 to 1"),
        ([1, 1, 1, 1], "one of the clusters 0 to 1 has no token"),
        ([0, 1], "2 clusters were named for 4 tokens"),
        ([0, 1, 0, 1, 0], "5 clusters were named for 4 tokens"),
    ],
)
def test_clusters_that_there_are_not_are_refused(ids: list[int], words: str) -> None:
    state = four_tokens()

    def rule(tokens: HeadTokens, count: int) -> Tensor:
        assert count == 2
        return torch.tensor(ids)

    with pytest.raises(ValueError, match=words):
        merge_clusters(state, torch.ones(1, 2, 4), torch.full((1, 2), 2), rule)


def test_heads_merge_their_own_tokens() -> None:
    merged = merge_clusters(
        four_tokens(), torch.ones(1, 2, 4), torch.full((1, 2), 2), lambda tokens, count: torch.tensor([0, 0, 0, 1])
    )
    assert merged.mass.tolist() == [[[3, 1], [3, 1]]]
    assert merged.keys[0].tolist() == [[[2, 3], [6, 7]], [[10, 11], [14, 15]]]


@pytest.mark.parametrize("weight", [torch.nan, torch.inf, -1.0])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    weights = torch.ones(1, 2, 4)
    weights[0, 1, 2] = weight
    with pytest.raises(ValueError, match=r"weights span .*: they must be finite and not negative"):
        merge_clusters(four_tokens(), weights, torch.full((1, 2), 2), lambda tokens, count: torch.tensor([0, 0, 0, 1]))


def test_gradients_flow_through_a_merge() -> None:
    state = four_tokens()
    values = state.values.clone().requires_grad_()
    merged = merge_clusters(
        replace(state, values=values),
        torch.tensor([1.0, 2.0, 1.0, 1.0]).expand(1, 2, 4),
        torch.full((1, 2), 2),
        lambda tokens, count: torch.tensor([0, 0, 0, 1]),
    )
    (gradient,) = torch.autograd.grad(merged.values[..., 0, :].sum(), values)
    assert gradient[0, 1, :, 0].tolist() == [0.25, 0.5, 0.25, 0.0]
