"""Sums and weighted means of clusters: by hand, the compiled loops beside torch's operations, wrong calls."""

from typing import Any

import pytest
import torch

from kvfw.core.ops import compiled
from kvfw.core.ops.cluster_means import cluster_sums, counts, weighted_means


@pytest.mark.parametrize("loops", [True, False])
def test_sums_and_counts_by_hand(loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loops:
        monkeypatch.setattr(compiled, "serves", lambda *tensors: False)
    z = torch.tensor([2, 0, 2, 2, 4])
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 0.5]])
    assert cluster_sums(v, z, 6).tolist() == [[3.0, 4.0], [0.0, 0.0], [13.0, 16.0], [0.0, 0.0], [9.0, 0.5], [0.0, 0.0]]
    assert counts(z, 6).tolist() == [1, 0, 3, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [0.0, 1e-45, 1e-30, 0.3, 1e30])
def test_single_tokens_stay_bit_for_bit(weight: float, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    x, a = torch.randn(40, 7, generator=g, dtype=dtype) + 10, torch.rand(40, generator=g, dtype=dtype)
    x[9, 0], a[[9, 30]] = -0.0, weight
    z = torch.arange(40) % 12
    z[[9, 30]] = torch.tensor([12, 13])
    means = weighted_means(x, a, z, 14)[[12, 13]]
    assert torch.equal(means, x[[9, 30]])
    assert torch.equal(means.signbit(), x[[9, 30]].signbit())


def test_one_token_survives_a_weight_that_rounds() -> None:
    v, w = torch.tensor([[0.1, 1e-8, 3e38]]), torch.tensor([0.3])
    assert not torch.equal(w * v / w, v)
    assert torch.equal(weighted_means(v, w, torch.tensor([0]), 1), v)


def test_means_by_hand() -> None:
    v = torch.tensor([[1.0], [3.0], [10.0], [20.0], [5.0], [6.0]])
    a = torch.tensor([1.0, 3.0, 0.0, 0.0, 1e-38, 3e-38])
    means = weighted_means(v, a, torch.tensor([0, 0, 1, 1, 3, 3]), 5)
    torch.testing.assert_close(means[[0, 1, 3], 0], torch.tensor([2.5, 15.0, 5.75]))
    assert means[[2, 4]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-20.0, -140.0])
def test_means_are_the_same_bit_for_bit_however_they_are_taken(
    low: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(4)
    x = torch.randn(200, 9, generator=g, dtype=dtype) + 10
    a = torch.exp2(low * torch.rand(200, generator=g, dtype=dtype))
    for clusters in (40, 150):
        z = torch.randint(clusters, (200,), generator=g)
        a[z == 3] = 0
        found, summed = weighted_means(x, a, z, clusters), cluster_sums(x, z, clusters)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "serves", lambda *tensors: False)  # as on an accelerator
            expected = weighted_means(x, a, z, clusters)
            assert torch.equal(cluster_sums(x, z, clusters), summed)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_gradients_flow_through_means() -> None:
    g = torch.Generator().manual_seed(1)
    x, a = torch.randn(20, 3, generator=g).double(), torch.rand(20, generator=g).double()
    z = torch.arange(20) % 7
    x.requires_grad_()
    means = weighted_means(x, a, z, 7)
    assert torch.equal(means.detach(), weighted_means(x.detach(), a, z, 7))
    (gradient,) = torch.autograd.grad(means.sum(), x)
    torch.testing.assert_close(gradient[:, 0], a / cluster_sums(a[:, None], z, 7)[z, 0])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [([0, 1, 3, 0], "cluster 3 is not one of 3"), ([0, -1, 2, 0], "cluster -1")],
)
def test_an_assignment_that_would_leave_the_memory_is_refused(assignment: list[int], message: str) -> None:
    x, z = torch.ones(4, 2), torch.tensor(assignment)
    with pytest.raises(ValueError, match=message):
        cluster_sums(x, z, 3)
    with pytest.raises(ValueError, match=message):
        weighted_means(x, torch.ones(4), z, 3)


def test_too_few_ids_or_weights_are_refused() -> None:
    """Without the shape checks of these tests, which would be first."""
    sums: Any = getattr(cluster_sums, "__wrapped__", cluster_sums)
    means: Any = getattr(weighted_means, "__wrapped__", weighted_means)
    x, z = torch.ones(4, 2), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="3 cluster ids for 4 tokens"):
        sums(x, z, 3)
    with pytest.raises(ValueError, match="3 cluster ids for 4 tokens"):
        means(x, torch.ones(4), z, 3)
    with pytest.raises(ValueError, match="2 weights for 4 tokens"):
        means(x, torch.ones(2), torch.tensor([0, 1, 2, 0]), 3)
