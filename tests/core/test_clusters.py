"""What a rule of clusters may answer."""

import pytest
import torch
from torch import Tensor

from kvfw.core.ops.clusters import HeadTokens, merge_clusters
from kvfw.core.state import KVState, exact_state


def four_tokens() -> KVState:
    x = torch.arange(16.0).view(1, 2, 4, 2)
    return exact_state(x, x, torch.arange(4.0)[None], torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 1, 1, 2], "into cluster 2: they are numbered 0 to 1"),
        ([0, -1, 1, 1], "into cluster -1: they are numbered 0 to 1"),
        ([1, 1, 1, 1], "one of the clusters 0 to 1 has no token"),
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
