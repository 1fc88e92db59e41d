"""Weighted k-means against scikit-learn, against a slow reference, and its laws."""

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from sklearn.cluster import KMeans
from torch import Tensor

from helpers.kmeans_alone import Clusters, blocked_kmeans, weighted_kmeans
from kvfw.core.ops import cluster_means, compiled
from kvfw.core.ops.cluster_means import cluster_sums, counts, weighted_means
from kvfw.core.ops.kmeans import distance, nearest, picking
from kvfw.core.ops.kmeans import lloyd as kmeans
from kvfw.core.ops.kmeans.blocks import Blocks, divided
from kvfw.core.ops.kmeans.lloyd import clusters_of_heads
from kvfw.core.ops.kmeans.nearest import Search
from kvfw.core.ops.kmeans.nearest_full import FullSearch
from kvfw.core.ops.kmeans.nearest_moved import BlockSearch, MovedSearch
from kvfw.core.ops.kmeans.products import margin_of

Points = list[list[float]]
TINY_CHUNK = 1


def ranks(N: int, K: int) -> list[int]:
    return [(N - 1) // 2] if K == 1 else [j * (N - 1) // (K - 1) for j in range(K)]


def slow_means(x: Points, a: list[float], z: list[int], K: int) -> Points:
    means = []
    for k in range(K):
        members = [i for i in range(len(x)) if z[i] == k]
        w = [a[i] for i in members] if any(a[i] for i in members) else [1.0] * len(members)
        total = sum(w)
        means.append([sum(u * x[i][d] for u, i in zip(w, members, strict=True)) / total for d in range(len(x[0]))])
    return means


def slow_kmeans(x: Points, a: list[float], K: int, iters: int) -> tuple[list[int], Points]:
    """The method read aloud: every distance afresh, the empty clusters filled one at a time."""
    N = len(x)
    if K >= N:
        return list(range(N)), x
    centres = [x[r] for r in ranks(N, K)]
    previous: list[int] | None = None
    for _ in range(iters):
        z, far = [], []
        for point in x:
            distances = [sum((p - c) ** 2 for p, c in zip(point, centre, strict=True)) for centre in centres]
            z.append(distances.index(min(distances)))
            far.append(min(distances))
        for k in range(K):
            if k in z:
                continue
            donors = [i for i in range(N) if z.count(z[i]) >= 2]
            z[max(donors, key=lambda i: (a[i] * far[i], -i))] = k
        if z == previous:
            break
        previous = z
        centres = slow_means(x, a, z, K)
    return z, centres


def same(left: Clusters, right: Clusters) -> bool:
    return torch.equal(left.assignment, right.assignment) and torch.equal(left.centres, right.centres)


def random_case(N: int, D: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    # An offset and unequal coordinates, as keys have them; weights over a few orders of magnitude.
    x = torch.randn(N, D, generator=g, dtype=dtype) * torch.linspace(0.5, 2, D, dtype=dtype) + 10
    return x, torch.exp(2 * torch.randn(N, generator=g, dtype=dtype))


@st.composite
def grids(draw: st.DrawFn, most: int = 14) -> tuple[Points, list[float], int, int]:
    """Few distinct integer points and weights: many duplicates, ties and empty clusters.

    With at most two coordinates a squared distance is one rounded sum of two terms, the same in any order.
    """
    D = draw(st.integers(1, 2))
    N = draw(st.integers(1, most))
    span = draw(st.integers(0, 5))
    coordinate = st.integers(-span, span).map(float)
    x = draw(st.lists(st.lists(coordinate, min_size=D, max_size=D), min_size=N, max_size=N))
    a = draw(st.lists(st.integers(0, 3).map(float), min_size=N, max_size=N))
    return x, a, draw(st.integers(1, N + 1)), draw(st.integers(1, 6))


# --- against others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("N", "D", "K", "iters"), [(60, 2, 5, 3), (200, 8, 20, 8), (301, 16, 75, 50), (97, 3, 1, 4)])
def test_equals_scikit_learn(N: int, D: int, K: int, iters: int, seed: int) -> None:
    x, a = random_case(N, D, seed)
    init = x[ranks(N, K)].numpy()
    theirs = KMeans(K, init=init, n_init=1, tol=0, algorithm="lloyd", max_iter=iters)
    theirs.fit(x.numpy(), sample_weight=a.numpy())
    ours = weighted_kmeans(x, a, K, iters)
    np.testing.assert_allclose(ours.centres.numpy(), theirs.cluster_centers_, rtol=0, atol=1e-10)
    # scikit-learn assigns once more to the final centres, unless the assignment was stable already.
    np.testing.assert_array_equal(weighted_kmeans(x, a, K, iters + 1).assignment.numpy(), theirs.labels_)


@settings(max_examples=400, deadline=None)
@given(grids(), st.sampled_from([TINY_CHUNK, 16, nearest.CHUNK]))
def test_equals_the_slow_reference_on_ties_duplicates_and_empty_clusters(
    case: tuple[Points, list[float], int, int], chunk: int
) -> None:
    x, a, K, iters = case
    z, centres = slow_kmeans(x, a, K, iters)
    double = torch.float64
    found = weighted_kmeans(torch.tensor(x, dtype=double), torch.tensor(a, dtype=double), K, iters, chunk=chunk)
    assert found.assignment.tolist() == z
    assert found.centres.tolist() == centres


@settings(max_examples=200, deadline=None)
@given(grids(30), st.integers(1, 12), st.sampled_from([TINY_CHUNK, 24, nearest.CHUNK]))
def test_blocks_are_clustered_one_by_one(case: tuple[Points, list[float], int, int], block: int, chunk: int) -> None:
    points, weights, K, iters = case
    x, a = torch.tensor(points, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    found = blocked_kmeans(x, a, K, iters, block, chunk=chunk)
    assert counts(found.assignment, len(found.centres)).min() >= 1
    if len(x) <= K:
        assert same(found, weighted_kmeans(x, a, K, iters))
        return
    start = first = 0
    for tokens, share in divided(len(x), K, block):
        z, centres = slow_kmeans(points[start : start + tokens], weights[start : start + tokens], share, iters)
        assert (found.assignment[start : start + tokens] - first).tolist() == z
        assert found.centres[first : first + share].tolist() == centres
        start, first = start + tokens, first + share
    assert (start, first) == (len(x), K)


def test_float32_of_real_size_agrees_with_float64() -> None:
    x, a = random_case(500, 64, 0, torch.float32)
    single, double = weighted_kmeans(x, a, 125, 1), weighted_kmeans(x.double(), a.double(), 125, 1)
    assert torch.equal(single.assignment, double.assignment)
    torch.testing.assert_close(single.centres.double(), double.centres, rtol=1e-5, atol=1e-5)


# --- empty clusters, by hand ------------------------------------------------------------------------------


def test_empty_clusters_take_the_costliest_tokens_of_clusters_that_can_spare_them() -> None:
    # Starting tokens are ranks 0, 2, 4, 6: all at 0, so clusters 1, 2, 3 are empty and 0 has everything.
    x = torch.tensor([[0.0], [2.0], [0.0], [-3.0], [0.0], [2.0], [0.0]])
    a = torch.tensor([1.0, 4.0, 1.0, 1.0, 1.0, 4.0, 1.0])
    # Costs a d^2: 16 at positions 1 and 5 (a tie: the lower first), 9 at position 3.
    found = weighted_kmeans(x, a, 4, 1)
    assert found.assignment.tolist() == [0, 1, 0, 3, 0, 2, 0]
    assert found.centres.tolist() == [[0.0], [2.0], [2.0], [-3.0]]


def repaired(closest: Tensor, cost: Tensor, blocks: Blocks) -> Tensor:
    """The repair where a token's weight is its cost: all stand one away from every centre."""
    centres = torch.zeros(len(blocks.of_cluster), 1)
    return kmeans._without_empty(closest, torch.ones(len(closest), 1), cost, centres, blocks)


def test_a_cluster_of_one_gives_nothing_however_costly_its_token() -> None:
    blocks = Blocks([(4, 3)], torch.device("cpu"))
    closest, cost = torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 9.0, 8.0, 2.0])
    # 1 is costliest; 2 would be next, but is then alone in cluster 1.
    assert repaired(closest, cost, blocks).tolist() == [0, 2, 1, 0]
    more = Blocks([(5, 4)], torch.device("cpu"))
    closest, cost = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([1.0, 9.0, 8.0, 2.0, 0.0])
    assert repaired(closest, cost, more).tolist() == [0, 2, 1, 3, 0]


# --- laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [0.0, 1e-45, 1e-30, 0.3, 1e30])
def test_single_tokens_stay_bit_for_bit(weight: float, dtype: torch.dtype) -> None:
    x, a = random_case(40, 7, 1, dtype)
    x[[9, 30]] = torch.tensor([500.0 / 3, -700.0 / 3], dtype=dtype)[:, None]  # far out: alone in their clusters
    x[9, 0] = -0.0
    a[[9, 30]] = weight
    found = weighted_kmeans(x, a, 14, 8)
    size = counts(found.assignment, 14)
    alone = (size[found.assignment] == 1).nonzero().squeeze(1)
    assert len(alone) >= 3
    centres = found.centres[found.assignment[alone]]
    assert torch.equal(centres, x[alone])
    assert torch.equal(centres.signbit(), x[alone].signbit())
    # With a weight whose product and quotient do round, the plain formula would not return the token.
    assert weighted_means(x, a, found.assignment, 14).equal(found.centres)


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


def test_sums_and_counts_by_hand_and_the_sorted_way_agrees() -> None:
    z = torch.tensor([2, 0, 2, 2, 4])
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 0.5]])
    expected = [[3.0, 4.0], [0.0, 0.0], [13.0, 16.0], [0.0, 0.0], [9.0, 0.5], [0.0, 0.0]]
    assert cluster_sums(v, z, 6).tolist() == expected
    assert cluster_means._segment_sums(v, z, 6).tolist() == expected
    assert counts(z, 6).tolist() == [1, 0, 3, 0, 1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_result_is_a_partition_with_means_of_the_last_assignment(seed: int) -> None:
    x, a = random_case(150, 5, seed)
    for iters in (1, 2, 8):
        found = weighted_kmeans(x, a, 40, iters)
        size = counts(found.assignment, 40)
        assert size.sum() == 150
        assert size.min() >= 1
        z = found.assignment.tolist()
        expected = torch.tensor(slow_means(x.tolist(), a.tolist(), z, 40), dtype=x.dtype)
        torch.testing.assert_close(found.centres, expected, rtol=1e-12, atol=1e-12)


def test_iterations_stop_when_stable_and_count_assignments() -> None:
    x, a = random_case(80, 3, 0)
    runs = [weighted_kmeans(x, a, 8, iters) for iters in range(1, 60)]
    stable = [same(one, runs[-1]) for one in runs]
    first = stable.index(True)
    assert 2 < first < 50
    assert all(stable[first:])
    assert not same(runs[0], runs[1])


SEARCHES = [FullSearch.of, MovedSearch.of]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("parts", [[(300, 60)], [(100, 17), (100, 20), (100, 19)], [(120, 22), (149, 25), (31, 9)]])
@pytest.mark.parametrize("search_of", SEARCHES)
def test_the_narrowed_search_equals_the_full_one(
    dtype: torch.dtype, offset: float, parts: list[tuple[int, int]], search_of: Callable[[Tensor, Blocks, int], Search]
) -> None:
    g = torch.Generator().manual_seed(0)
    # Rounded to halves: plenty of exactly equal distances.
    x = (torch.randn(300, 6, generator=g, dtype=dtype) * 2).round() / 2 + offset
    a = torch.rand(300, generator=g, dtype=dtype)
    blocks = Blocks(parts, x.device)
    search = search_of(x, blocks, 3000)
    centres = x[blocks.starting_tokens()]
    ties = 0
    for _ in range(12):
        found = search.nearest(centres)
        full = ((x[:, None] - centres) ** 2).sum(2).masked_fill(of_others(blocks), torch.inf)
        least = full == full.amin(1, keepdim=True)
        assert torch.equal(found, least.int().argmax(1))
        ties += int((least.sum(1) > 1).sum())
        centres = weighted_means(x, a, kmeans._without_empty(found, x, a, centres, blocks), len(centres))
    assert ties > 0


def of_others(blocks: Blocks) -> Tensor:
    return blocks.of_cluster != blocks.of_token[:, None]


#: Share of the centres that move, and how far.
Steps = list[tuple[float, float]]


def moved_on(centres: Tensor, start: Tensor, share: float, far: float, g: torch.Generator) -> Tensor:
    """Some centres a step on (0: to the next number), or back where they began, where others may be."""
    some = torch.rand(len(centres), 1, generator=g) < share
    step = torch.randn(centres.shape, generator=g, dtype=centres.dtype) * far
    stepped = torch.nextafter(centres, centres + 1) if far == 0 else centres + step
    back = torch.rand(len(centres), 1, generator=g) < 0.3
    return torch.where(some, torch.where(back, start, stepped), centres)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**20),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    steps=st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1e-7, 0.5, 1e4])), min_size=1, max_size=8),
)
@example(seed=15711, offset=0.0, dtype=torch.float32, steps=[(0.0, 0.5)] * 6 + [(0.5, 1e-7)])
def test_whichever_centres_move_how_far_the_nearest_are_those_of_a_full_search(
    seed: int, offset: float, dtype: torch.dtype, steps: Steps
) -> None:
    """Also centres that become equal to others, leave and come back, or do not move at all."""
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(90, 3, generator=g, dtype=dtype) * 2).round() / 2 + offset
    blocks = Blocks([(60, 12), (30, 9)], x.device)
    search = MovedSearch.of(x, blocks, 300)
    centres = start = x[blocks.starting_tokens()]
    for share, far in steps:
        centres = moved_on(centres, start, share, far, g)
        full = ((x[:, None] - centres) ** 2).sum(2).masked_fill(of_others(blocks), torch.inf)
        assert torch.equal(search.nearest(centres), (full == full.amin(1, keepdim=True)).int().argmax(1))


def test_a_centre_that_moves_by_less_than_the_mean_tells_has_moved() -> None:
    u = 2.0**-23
    x = torch.tensor([[1 + 2 * u], [-3 - 2 * u]])
    search = BlockSearch(x, 2, 64, torch.empty(64))
    assert search.nearest(torch.tensor([[1.0], [1 + 4 * u]])).tolist() == [0, 0]
    assert search.nearest(torch.tensor([[1 - u / 2], [1 + 4 * u]])).tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_search_remembers_is_true(seed: int) -> None:
    """Of every token the score of its nearest centre, and one that no other exceeds but by rounding."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(100, 5, generator=g)
    search = BlockSearch(x, 20, 2000, torch.empty(2000))
    centres = start = x[::5]
    longest = 0.0
    # Far away and back: scores remembered from then are less exact.
    for share, far in [
        (0.3, 0.1),
        (0.2, 1e4),
        (0.5, 0.0),
        (1.0, 1e-3),
        (0.1, 0.5),
        (0.4, 1e4),
        (0.9, 1e-7),
        (0.3, 1.0),
    ]:
        centres = moved_on(centres, start, share, far, g)
        found = search.nearest(centres)[:, None]
        y, z = (part.double() - search._origin.double() for part in (x, centres))
        score = 2 * y @ z.T - (z * z).sum(1)
        longest = max(longest, float(z.norm(dim=1).max()))
        assert float(search._longest) == pytest.approx(longest, rel=1e-6)
        half = margin_of(y.norm(dim=1) + longest, 5) * 2.0**29 / 2
        assert ((search._best[:100].double() - score.gather(1, found)[:, 0]).abs() <= half).all()
        assert (search._rest[:100].double() + half >= score.scatter(1, found, -torch.inf).amax(1)).all()
    assert longest > 1e4


def test_only_centres_that_moved_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = random_case(200, 8, 3)
    search = BlockSearch(x, 40, 2**20, x.new_empty(2**20))
    centres = x[::5].clone()
    search.nearest(centres)
    asked = list[list[int]]()
    look = BlockSearch._look

    def noted(self: BlockSearch, which: Tensor) -> None:
        asked.append(which.tolist())
        look(self, which)

    monkeypatch.setattr(BlockSearch, "_look", noted)
    centres[[3, 17]] += 0.25
    search.nearest(centres)
    search.nearest(centres)
    assert asked == [[3, 17]]


def test_blocks_take_turns_with_one_room_for_scores() -> None:
    x, _ = random_case(3 * 400, 8, 3)
    search = MovedSearch.of(x, Blocks([(400, 90), (500, 70), (300, 80)], x.device), 3000)
    assert len({own._room.data_ptr() for own in search._searches}) == 1
    # The most is 32 tokens and 90 centres.
    assert len(search._searches[0]._room) == 2880


@pytest.mark.parametrize(("clusters", "expected"), [(255, FullSearch), (256, MovedSearch)])
def test_the_search_depends_on_the_number_of_centres(clusters: int, expected: type) -> None:
    x, _ = random_case(300, 3, 2, torch.float32)
    blocks = Blocks([(300, clusters)], x.device)
    assert type(nearest.search_of(x, blocks, nearest.CHUNK)) is expected


def test_which_search_is_used_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x, a = random_case(6 * 80, 5, 7)
    heads, weights = x.view(6, 80, 5), a.view(6, 80)
    # Heads that become stable at different times, so that only some go on.
    heads[:4, :40] = 100 + heads[:4, :40] / 100
    few = [clusters_of_heads(heads, weights, 9, 30, block) for block in (None, 32)]
    fewer = list[int]()
    only = MovedSearch.only

    def noted(self: MovedSearch, blocks: Tensor, tokens: Tensor) -> MovedSearch:
        fewer.append(len(blocks))
        return only(self, blocks, tokens)

    monkeypatch.setattr(MovedSearch, "only", noted)
    monkeypatch.setattr(nearest, "MANY", 1)
    assert all(map(torch.equal, few, [clusters_of_heads(heads, weights, 9, 30, block) for block in (None, 32)]))
    assert fewer


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator does, on the CPU."""
    monkeypatch.setattr(compiled, "serves", lambda *tensors: False)


@pytest.mark.parametrize("many", [1, 1000])
@pytest.mark.parametrize("block", [None, 25])
def test_an_accelerator_clusters_as_a_cpu_does(many: int, block: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    # Small integers: sums are exact in any order, so that ties are ties everywhere.
    x = torch.randint(-3, 4, (3, 110, 4), generator=g).float()
    weights = torch.randint(1, 5, (3, 110), generator=g).float()
    monkeypatch.setattr(nearest, "MANY", many)
    expected = clusters_of_heads(x, weights, 30, 2, block, chunk=700)
    elsewhere(monkeypatch)
    assert torch.equal(clusters_of_heads(x, weights, 30, 2, block, chunk=700), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 150, 301), (2, 7, 256), (1, 1, 5), (2, 2, 513)])
def test_the_two_largest_scores_however_they_are_found(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    score = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype).mul_(2).round_()
    score[:, shape[1] // 2] = -torch.inf if shape[1] > 1 else 1.0
    given = score.clone()
    descending = score.sort(dim=1, descending=True, stable=True)
    for found in (picking.two_largest(score), picking._two_largest(score)):
        assert torch.equal(found.best, descending.values[:, 0])
        assert torch.equal(found.at, descending.indices[:, 0])
        assert torch.equal(
            found.second, descending.values[:, 1] if shape[1] > 1 else torch.full_like(found.best, -torch.inf)
        )
        assert torch.equal(score, given)


def test_picking_tells_the_score_of_the_nearest_and_the_largest_of_the_others() -> None:
    g = torch.Generator().manual_seed(1)
    x, centres = torch.randn(50, 3, generator=g), torch.randn(12, 3, generator=g)
    # The second block has tokens 30 to 49 and centres 5 to 11; what fills up the first is never looked at.
    start, first = torch.tensor([0, 30]), torch.tensor([0, 5])
    far = torch.cdist(x, centres).square()
    score = torch.full((2, 7, 30), -torch.inf)
    score[0, :5] = -far[:30, :5].T
    score[1, :, :20] = -far[30:, 5:].T
    # Off by so much that the choice by score is often wrong.
    noise = torch.rand(score.shape, generator=g) * 2
    margin = torch.full((2, 30), 2.0)
    margin[1, 20:] = torch.nan
    nearest_by_distance = far[:30, :5].argmin(1), far[30:, 5:].argmin(1)
    wrong = 0
    for picks in (picking.pick, lambda *given: picking._decided(picking._two_largest(given[0]), *given)):
        picked = picks(score - noise, margin, x, start, centres, first, 40)
        assert torch.equal(picked.at[0], nearest_by_distance[0])
        assert torch.equal(picked.at[1, :20], nearest_by_distance[1])
        at = picked.at[:, None]
        assert torch.equal(picked.best, (score - noise).gather(1, at)[:, 0])
        assert torch.equal(picked.second, (score - noise).scatter(1, at, -torch.inf).amax(1))
        wrong += int((picked.second > picked.best).sum())
    assert wrong > 10


def test_equal_tokens_do_not_fill_an_accelerators_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every centre is a rival for every token then; they are decided some at a time."""
    asked = list[int]()
    squared_distance = distance.squared_distance

    def counted(x: Tensor, c: Tensor) -> Tensor:
        asked.append(x.numel())
        return squared_distance(x, c)

    elsewhere(monkeypatch)
    monkeypatch.setattr(picking, "squared_distance", counted)
    chunk = 16 * 40
    found = weighted_kmeans(torch.ones(400, 3), torch.ones(400), 40, 1, chunk=chunk)
    assert counts(found.assignment, 40).min() >= 1
    assert sum(asked) == 400 * 40 * 3
    assert max(asked) <= chunk


@pytest.mark.parametrize("coordinates", [1, 3, 4, 66])
def test_distances_by_hand(coordinates: int) -> None:
    g = torch.Generator().manual_seed(2)
    x, centres = torch.randn(40, coordinates, generator=g), torch.randn(6, coordinates, generator=g)
    z = torch.randint(6, (40,), generator=g)
    expected = (x.double() - centres[z].double()).square().sum(1).float()
    torch.testing.assert_close(distance.to_own(x, centres, z), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(distance.squared_distance(x, centres[z]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-20.0, -140.0])
def test_means_are_the_same_bit_for_bit_however_they_are_taken(
    low: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = random_case(200, 9, 4, dtype)
    g = torch.Generator().manual_seed(4)
    a = torch.exp2(low * torch.rand(200, generator=g, dtype=dtype))
    for clusters in (40, 150):
        z = torch.randint(clusters, (200,), generator=g)
        a[z == 3] = 0
        found, summed = weighted_means(x, a, z, clusters), cluster_sums(x, z, clusters)
        with monkeypatch.context() as patch:
            elsewhere(patch)
            expected = weighted_means(x, a, z, clusters)
            assert torch.equal(cluster_sums(x, z, clusters), summed)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_gradients_flow_through_means() -> None:
    x, a = random_case(20, 3, 1)
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


def test_a_search_of_short_blocks_alone_is_a_new_one_of_them() -> None:
    x, _ = random_case(148, 5, 9)
    blocks = Blocks([(64, 8), (64, 8), (20, 3)], x.device)
    centres = x[blocks.starting_tokens()]
    all_found = FullSearch.of(x, blocks, 700).nearest(centres)
    rest = FullSearch.of(x, blocks, 700).only(torch.tensor([2]), torch.arange(128, 148))
    assert rest.blocks.width == 32
    assert torch.equal(rest.nearest(centres[16:]), all_found[128:] - 16)


@pytest.mark.parametrize("low", [0.0, 1e-30, 0.5])
def test_heads_together_are_what_each_is_alone_whatever_their_weights(low: float) -> None:
    x, a = random_case(4 * 90, 8, 5, torch.float32)
    heads, weights = x.view(4, 90, 8), a.view(4, 90).clone()
    weights[2, ::3] *= low
    for block in (None, 32):
        found = clusters_of_heads(heads, weights, 22, 8, block)
        for head, of, z in zip(heads, weights, found, strict=True):
            assert torch.equal(clusters_of_heads(head[None], of[None], 22, 8, block)[0], z)


def test_blocks_that_are_stable_stay_while_the_others_go_on() -> None:
    # Blocks 0 to 2 are two far pairs each, stable at once; block 3 needs many iterations.
    x, a = random_case(4 * 60, 3, 0)
    x = x.view(4, 60, 3)
    x[:3, :30] = 1000 + x[:3, :30] / 1000
    weights = a.view(4, 60)
    alone = [weighted_kmeans(x[i], weights[i], 2 if i < 3 else 8, 40) for i in range(4)]
    assert not same(alone[3], weighted_kmeans(x[3], weights[3], 8, 3))
    parts = [(60, 2), (60, 2), (60, 2), (60, 8)]
    found = kmeans._lloyd(x.flatten(0, 1), a, parts, 40, nearest.CHUNK).view(4, 60)
    for i, z in enumerate(found):
        assert torch.equal(z - 2 * i, alone[i].assignment)


def test_blocks_of_unequal_length_side_by_side_are_what_each_is_alone() -> None:
    parts = [(70, 9), (33, 30), (64, 64), (1, 1), (50, 2)]
    x, a = random_case(sum(tokens for tokens, _ in parts), 5, 6)
    x[70:103] = x[70:75].repeat(7, 1)[:33]
    found = kmeans._lloyd(x, a, parts, 8, nearest.CHUNK)
    start = first = 0
    for tokens, share in parts:
        some = slice(start, start + tokens)
        assert torch.equal(found[some] - first, weighted_kmeans(x[some], a[some], share, 8).assignment)
        start, first = start + tokens, first + share


def test_a_table_of_blocks_is_filled_up_at_the_end_of_its_rows() -> None:
    blocks = Blocks([(3, 1), (17, 2)], torch.device("cpu"))
    table = blocks.table(torch.arange(20.0), -1.0)
    assert table.shape == (2, 32)
    assert table[0].tolist() == [0.0, 1.0, 2.0, *[-1.0] * 29]
    assert table[1].tolist() == [*map(float, range(3, 20)), *[-1.0] * 15]
    assert torch.equal(table.flatten()[blocks.place], torch.arange(20.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunk_size_and_threads_do_not_show(dtype: torch.dtype) -> None:
    x, a = random_case(203, 33, 2, dtype)
    x[100:150] = x[50:100]
    expected = weighted_kmeans(x, a, 51, 4)
    blocked = blocked_kmeans(x, a, 51, 4, 64)
    for chunk in (1, 150, 4096, 2**22):
        assert same(weighted_kmeans(x, a, 51, 4, chunk=chunk), expected)
        assert same(blocked_kmeans(x, a, 51, 4, 64, chunk=chunk), blocked)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert same(weighted_kmeans(x, a, 51, 4), expected)
    finally:
        torch.set_num_threads(threads)


def test_memory_layout_does_not_decide_near_ties() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(60):
        # Starting centres are 0, 100 and 100 again, so cluster 2 is empty. It takes v or v reversed,
        # which cost the same up to the order in which the squares are added.
        v = torch.randn(33, generator=g)
        x = torch.stack([torch.zeros(33), v, v.flip(0), *torch.full((4, 33), 100.0)])
        expected = weighted_kmeans(x, torch.ones(7), 3, 1, chunk=24)
        assert expected.assignment[1:3].tolist() in ([2, 0], [0, 2])
        assert same(weighted_kmeans(x.T.contiguous().T, torch.ones(7), 3, 1, chunk=24), expected)


def test_a_head_does_not_depend_on_its_neighbours() -> None:
    x, a = random_case(3 * 90, 8, 5, torch.float32)
    heads, weights = x.view(3, 90, 8), a.view(3, 90)
    order = [2, 0, 1]
    batch = [weighted_kmeans(heads[h], weights[h], 22, 8) for h in range(3)]
    permuted = [weighted_kmeans(h, w, 22, 8) for h, w in zip(heads[order], weights[order], strict=True)]
    interleaved = heads.transpose(0, 1).contiguous()  # a head as a strided view among the others
    for place, h in enumerate(order):
        assert same(batch[h], permuted[place])
        assert same(batch[h], weighted_kmeans(interleaved[:, h], weights[h], 22, 8))
    assert not same(batch[0], batch[1])


def test_inputs_are_left_as_they_were() -> None:
    x, a = random_case(50, 4, 0)
    before = x.clone(), a.clone()
    weighted_kmeans(x, a, 12, 8)
    found = weighted_kmeans(x, a, 60, 8)
    found.centres.zero_()
    assert torch.equal(x, before[0])
    assert torch.equal(a, before[1])


@pytest.mark.parametrize("power", [-140, -60, 3, 100])
def test_a_common_factor_of_the_weights_cancels(power: int) -> None:
    x, a = random_case(120, 6, 3, torch.float32)
    a = (a * 64).round() + 1  # few digits: exact even where 2^-140 makes them subnormal
    expected = weighted_kmeans(x, a, 30, 8)
    scaled = torch.tensor([math.ldexp(float(w), power) for w in a])
    assert same(weighted_kmeans(x, scaled, 30, 8), expected)


def test_weights_matter_and_zero_weights_fall_back_to_plain_means() -> None:
    x, a = random_case(120, 6, 3)
    plain = weighted_kmeans(x, torch.ones_like(a), 30, 8)
    assert not torch.allclose(weighted_kmeans(x, a, 30, 8).centres, plain.centres)
    assert same(weighted_kmeans(x, torch.zeros_like(a), 30, 8), plain)


@pytest.mark.parametrize("K", [20, 21, 1000])
def test_enough_clusters_is_the_identity(K: int) -> None:
    x, a = random_case(20, 3, 0)
    x[4] = x[11]
    for found in (weighted_kmeans(x, a, K, 8), blocked_kmeans(x, a, K, 8, 6)):
        assert found.assignment.tolist() == list(range(20))
        assert torch.equal(found.centres, x)


# --- blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [100, 101, 5000])
def test_one_block_is_plain_kmeans(block: int) -> None:
    x, a = random_case(100, 5, 7)
    assert same(blocked_kmeans(x, a, 23, 8, block), weighted_kmeans(x, a, 23, 8))
    assert not same(blocked_kmeans(x, a, 23, 8, 50), weighted_kmeans(x, a, 23, 8))


def test_a_full_block_keeps_equal_tokens_in_order() -> None:
    assert divided(5, 4, 1) == [(2, 2), (2, 1), (1, 1)]
    found = blocked_kmeans(torch.ones(5, 2), torch.ones(5), 4, 3, 1)
    assert found.assignment.tolist() == [0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("N", "K", "block", "expected"),
    [
        (12, 6, 4, [(4, 2), (4, 2), (4, 2)]),
        (12, 4, 4, [(4, 2), (4, 1), (4, 1)]),
        (10, 5, 4, [(4, 2), (4, 2), (2, 1)]),
        (11, 5, 4, [(4, 2), (4, 2), (3, 1)]),  # shares 1.82, 1.82, 1.36
        (9, 2, 4, [(9, 2)]),  # share 0.89: block doubled to 8; then the last token joins
        (16, 2, 2, [(8, 1), (8, 1)]),  # share 0.25: blocks of four times two
        (9, 8, 8, [(8, 7), (1, 1)]),
        (9, 3, 8, [(9, 3)]),  # the last token's share 0.33 rounds to 0: it joins
        (5, 1, 2, [(5, 1)]),
    ],
)
def test_clusters_are_divided_over_blocks(N: int, K: int, block: int, expected: list[tuple[int, int]]) -> None:
    assert divided(N, K, block) == expected


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 400), st.data())
def test_division_over_blocks_is_exact(N: int, data: st.DataObject) -> None:
    K, block = data.draw(st.integers(1, N - 1)), data.draw(st.integers(1, N + 5))
    parts = divided(N, K, block)
    assert sum(tokens for tokens, _ in parts) == N
    assert sum(share for _, share in parts) == K
    for tokens, share in parts:
        assert 1 <= share <= tokens
        assert K * tokens // N <= share <= -(-K * tokens // N)
    sizes = [tokens for tokens, _ in parts]
    assert len(set(sizes[:-1])) <= 1
    # Blocks are no longer than they must be: linear time.
    assert max(sizes) < 2 * block * -(-N // (K * block))


# --- wrong calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": 0}, "clusters=0"),
        ({"clusters": -3}, "clusters=-3"),
        ({"iters": 0}, "iters=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"x": torch.zeros(0, 4), "weights": torch.zeros(0)}, r"shape \(0, 4\)"),
        ({"x": torch.zeros(5, 0)}, r"shape \(5, 0\)"),
        ({"x": torch.full((5, 2), torch.nan)}, "size nan"),
        ({"x": torch.full((5, 2), 1e19)}, r"size 1e\+19"),
        ({"x": torch.ones(5, 2).half()}, "float16"),
        ({"weights": torch.ones(5).double()}, "float64"),
        ({"weights": torch.tensor([1.0, 1.0, -0.5, 1.0, 2.0])}, "span -0.5 to 2"),
        ({"weights": torch.tensor([1.0, torch.inf, 1.0, 1.0, 1.0])}, "to inf"),
        ({"weights": torch.tensor([1.0, torch.nan, 1.0, 1.0, 1.0])}, "nan"),
    ],
)
def test_wrong_calls_name_the_value(change: dict[str, object], message: str) -> None:
    call: dict[str, object] = {"x": torch.ones(5, 2), "weights": torch.ones(5), "clusters": 2, "iters": 3}
    call |= change
    with pytest.raises(ValueError, match=message):
        weighted_kmeans(**call)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        blocked_kmeans(**call, block=2)  # type: ignore[arg-type]


def test_an_empty_block_is_refused() -> None:
    with pytest.raises(ValueError, match="block=0"):
        blocked_kmeans(torch.ones(5, 2), torch.ones(5), 2, 3, 0)


@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("block", [None, 7, 20, 200])
@pytest.mark.parametrize("chunk", [1, 60 * 11, 2**19])
def test_heads_side_by_side_are_clustered_as_each_alone(heads: int, block: int | None, chunk: int) -> None:
    N, K, iters = 60, 11, 6
    g = torch.Generator().manual_seed(heads)
    # Heads of different spread, so that they become stable after different numbers of iterations; some equal tokens.
    x = torch.randn(heads, N, 3, generator=g) * torch.arange(1, heads + 1)[:, None, None]
    x[:, 10:14] = x[:, 9:10]
    weights = torch.rand(heads, N, generator=g)
    found = clusters_of_heads(x, weights, K, iters, block, chunk=chunk)
    for head in range(heads):
        alone = (
            weighted_kmeans(x[head], weights[head], K, iters)
            if block is None
            else blocked_kmeans(x[head], weights[head], K, iters, block)
        )
        assert torch.equal(found[head], alone.assignment)
    assert clusters_of_heads(x, weights, N, iters, block).tolist() == [list(range(N))] * heads


def test_no_heads_have_no_clusters_and_the_identity_is_a_tensor_of_its_own() -> None:
    assert clusters_of_heads(torch.zeros(0, 5, 2), torch.zeros(0, 5), 3, 8).shape == (0, 5)
    identity = clusters_of_heads(torch.zeros(2, 3, 2), torch.ones(2, 3), 3, 8)
    identity[0, 0] = 2
    assert identity[1].tolist() == [0, 1, 2]
