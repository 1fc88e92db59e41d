"""K-means through its one function: against scikit-learn, against slow references, and its laws."""

import itertools
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.cluster import KMeans
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvfw.core.ops import compiled
from kvfw.core.ops.cluster_means import weighted_means
from kvfw.core.ops.kmeans import clusters_of_heads

Points = list[list[float]]
#: Enough clusters for the search that looks only at centres that moved, and few enough for the one that does not.
MANY, FEW = 300, 40


def clustered(x: Tensor, a: Tensor, K: int, iters: int, block: int | None = None, **options: int) -> Tensor:
    """The clusters of one head."""
    return clusters_of_heads(x[None], a[None], K, iters, block, **options)[0]


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


def slow_kmeans(x: Points, a: list[float], K: int, iters: int) -> list[int]:
    """The method read aloud: every distance afresh, the empty clusters filled one at a time."""
    N = len(x)
    if K >= N:
        return list(range(N))
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
    return z


def slow_division(N: int, K: int, block: int) -> list[tuple[int, int]]:
    """Tokens and clusters of every block, in exact fractions, one rule after the other."""
    size = next(size for size in itertools.count(block, block) if Fraction(K * size, N) >= 1)
    tokens = [min(size, N - start) for start in range(0, N, size)]
    shares = largest_remainder(K, tokens)
    if shares[-1] == 0:
        tokens[-2:] = [sum(tokens[-2:])]
        shares = largest_remainder(K, tokens)
    return list(zip(tokens, shares, strict=True))


def largest_remainder(K: int, tokens: list[int]) -> list[int]:
    due = [Fraction(K * n, sum(tokens)) for n in tokens]
    shares = [math.floor(exact) for exact in due]
    while sum(shares) < K:
        most = max(range(len(due)), key=lambda b: (due[b] - shares[b], -b))
        shares[most] += 1
    return shares


def slow_blocks(x: Points, a: list[float], K: int, iters: int, block: int) -> list[int]:
    """Every block by itself; ids ascend with the blocks."""
    z, start, first = list[int](), 0, 0
    for tokens, share in slow_division(len(x), K, block) if len(x) > K else [(len(x), K)]:
        found = slow_kmeans(x[start : start + tokens], a[start : start + tokens], share, iters)
        z += [first + k for k in found]
        start, first = start + tokens, first + share
    assert (start, first) == (len(x), K)
    return z


def of_real_size(x: Tensor, a: Tensor, K: int, iters: int) -> tuple[Tensor, int]:
    """The same for many tokens: all distances at once, in the tokens' own precision. And how many ties there were."""
    centres, previous, ties = x[ranks(len(x), K)], x.new_empty(0), 0
    for _ in range(iters):
        far = ((x[:, None] - centres) ** 2).sum(2)
        least = far == far.amin(1, keepdim=True)
        ties += int((least.sum(1) > 1).sum())
        z = least.int().argmax(1)
        cost = a * far.gather(1, z[:, None])[:, 0]
        size = torch.bincount(z, minlength=K)
        for k in (size == 0).nonzero()[:, 0].tolist():
            donor = torch.where(size[z] > 1, cost, -1.0).argmax()
            size[z[donor]] -= 1
            size[k] += 1
            z[donor] = k
        if torch.equal(z, previous):
            break
        centres, previous = weighted_means(x, a, z, K), z
    return z, ties


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("N", "D", "K", "iters"), [(60, 2, 5, 3), (200, 8, 20, 8), (301, 16, 75, 50), (97, 3, 1, 4)])
def test_equals_scikit_learn(N: int, D: int, K: int, iters: int, seed: int) -> None:
    x, a = random_case(N, D, seed)
    init = x[ranks(N, K)].numpy()
    theirs = KMeans(K, init=init, n_init=1, tol=0, algorithm="lloyd", max_iter=iters)
    theirs.fit(x.numpy(), sample_weight=a.numpy())
    centres = weighted_means(x, a, clustered(x, a, K, iters), K)
    np.testing.assert_allclose(centres.numpy(), theirs.cluster_centers_, rtol=0, atol=1e-10)
    # scikit-learn assigns once more to the final centres, unless the assignment was stable already.
    np.testing.assert_array_equal(clustered(x, a, K, iters + 1).numpy(), theirs.labels_)


@settings(max_examples=300)
@given(grids(), st.sampled_from([1, 16, 2**20]))
def test_equals_the_slow_reference_on_ties_duplicates_and_empty_clusters(
    case: tuple[Points, list[float], int, int], chunk: int
) -> None:
    x, a, K, iters = case
    found = clustered(torch.tensor(x).double(), torch.tensor(a).double(), K, iters, chunk=chunk)
    assert found.tolist() == slow_kmeans(x, a, K, iters)


@settings(max_examples=200)
@given(grids(30), st.integers(1, 12), st.sampled_from([1, 24, 2**20]))
def test_blocks_are_clustered_one_by_one(case: tuple[Points, list[float], int, int], block: int, chunk: int) -> None:
    x, a, K, iters = case
    found = clustered(torch.tensor(x).double(), torch.tensor(a).double(), K, iters, block, chunk=chunk)
    assert found.tolist() == slow_blocks(x, a, min(K, len(x)), iters, block)


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
        (5, 4, 1, [(2, 2), (2, 1), (1, 1)]),
    ],
)
def test_clusters_are_divided_over_blocks(N: int, K: int, block: int, expected: list[tuple[int, int]]) -> None:
    assert slow_division(N, K, block) == expected
    # Tokens far from each other: every cluster has tokens of its own block only.
    found = clustered(torch.arange(float(N))[:, None], torch.ones(N), K, 3, block)
    ends = itertools.accumulate(tokens for tokens, _ in expected)
    assert [len(set(found[end - tokens : end].tolist())) for end, (tokens, _) in zip(ends, expected, strict=True)] == [
        share for _, share in expected
    ]


@pytest.mark.parametrize("K", [FEW, MANY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("seed", range(2))
def test_the_narrowed_search_finds_what_all_distances_say(K: int, dtype: torch.dtype, offset: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    # Rounded to halves: plenty of exactly equal distances.
    x = (torch.randn(700, 6, generator=g, dtype=dtype) * 2).round() / 2 + offset
    a = torch.rand(700, generator=g, dtype=dtype)
    expected, ties = of_real_size(x, a, K, 12)
    assert ties > 0
    assert torch.equal(clustered(x, a, K, 12), expected)
    assert torch.equal(clustered(x, a, K, 12, chunk=20 * K), expected)


def test_float32_of_real_size_agrees_with_float64() -> None:
    x, a = random_case(500, 64, 0, torch.float32)
    assert torch.equal(clustered(x, a, 125, 1), clustered(x.double(), a.double(), 125, 1))


def test_empty_clusters_take_the_costliest_tokens_of_clusters_that_can_spare_them() -> None:
    # Starting tokens are ranks 0, 2, 4, 6: all at 0, so clusters 1, 2, 3 are empty and 0 has everything.
    x = torch.tensor([[0.0], [2.0], [0.0], [-3.0], [0.0], [2.0], [0.0]])
    a = torch.tensor([1.0, 4.0, 1.0, 1.0, 1.0, 4.0, 1.0])
    # Costs a d^2: 16 at positions 1 and 5 (a tie: the lower first), 9 at position 3.
    assert clustered(x, a, 4, 1).tolist() == [0, 1, 0, 3, 0, 2, 0]


# --- laws -------------------------------------------------------------------------------------------------


def test_iterations_stop_when_stable_and_count_assignments() -> None:
    x, a = random_case(80, 3, 0)
    runs = [clustered(x, a, 8, iters) for iters in range(1, 60)]
    stable = [torch.equal(one, runs[-1]) for one in runs]
    first = stable.index(True)
    assert 2 < first < 50
    assert all(stable[first:])
    assert not torch.equal(runs[0], runs[1])


@pytest.mark.parametrize("low", [1.0, 0.0, 1e-30])
@pytest.mark.parametrize(("N", "K", "block"), [(90, 22, None), (90, 22, 32), (700, MANY, None), (700, 620, 350)])
def test_heads_together_are_what_each_is_alone(N: int, K: int, block: int | None, low: float) -> None:
    x, a = random_case(4 * N, 3, 5, torch.float32)
    heads, weights = x.view(4, N, 3), a.view(4, N)
    weights[2, ::3] *= low
    # Heads 0 and 1 are stable long before the others; head 3 has equal tokens.
    heads[:2] = heads[:2].round()
    heads[3, 10:20] = heads[3, 9]
    together = clusters_of_heads(heads, weights, K, 30, block)
    for head, a, z in zip(heads, weights, together, strict=True):
        assert torch.equal(clustered(head, a, K, 30, block), z)
    order = [2, 0, 3, 1]
    assert torch.equal(clusters_of_heads(heads[order], weights[order], K, 30, block), together[order])
    interleaved = heads.transpose(0, 1).contiguous().transpose(0, 1)  # a head as a strided view among the others
    assert torch.equal(clusters_of_heads(interleaved, weights, K, 30, block), together)


def test_blocks_that_are_stable_stay_while_the_others_go_on() -> None:
    # Heads 0 to 2 are two far halves each, stable at once; head 3 needs many iterations.
    x, a = random_case(4 * 60, 3, 0)
    heads, weights = x.view(4, 60, 3), a.view(4, 60)
    heads[:3, :30] = 1000 + heads[:3, :30] / 1000
    steps = [clusters_of_heads(heads, weights, 2, iters) for iters in (1, 2, 40)]
    assert torch.equal(steps[0][:3], steps[2][:3])
    assert not torch.equal(steps[1][3], steps[2][3])
    assert torch.equal(steps[2][3], clustered(heads[3], weights[3], 2, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("K", "block"), [(51, None), (51, 64), (MANY, None)])
def test_chunk_size_and_threads_do_not_show(K: int, block: int | None, dtype: torch.dtype) -> None:
    x, a = random_case(4 * K - 1, 33, 2, dtype)
    x[100:150] = x[50:100]
    expected = clustered(x, a, K, 5, block)
    for chunk in (1, 150, 4096, 2**22):
        assert torch.equal(clustered(x, a, K, 5, block, chunk=chunk), expected)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert torch.equal(clustered(x, a, K, 5, block), expected)
    finally:
        torch.set_num_threads(threads)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator does, on the CPU."""
    monkeypatch.setattr(compiled, "serves", lambda *tensors: False)


@pytest.mark.parametrize(("N", "K", "block"), [(110, 30, None), (110, 30, 25), (700, MANY, None), (700, 620, 350)])
def test_an_accelerator_clusters_as_a_cpu_does(
    N: int, K: int, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    # Small integers: sums are exact in any order, so that ties are ties everywhere.
    x = torch.randint(-3, 4, (3, N, 4), generator=g).float()
    weights = torch.randint(1, 5, (3, N), generator=g).float()
    expected = [clusters_of_heads(x, weights, K, iters, block, chunk=30 * K) for iters in (1, 2, 8)]
    elsewhere(monkeypatch)
    found = [clusters_of_heads(x, weights, K, iters, block, chunk=30 * K) for iters in (1, 2, 8)]
    # Means of few integers are the same, too, unless a sum is rounded.
    assert all(map(torch.equal, found, expected))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most numbers that any tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("K", [FEW, MANY])
@pytest.mark.parametrize("loops", [True, False])
def test_equal_tokens_do_not_fill_the_memory(loops: bool, K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every centre is a rival for every token then; they are decided some at a time."""
    if not loops:
        elsewhere(monkeypatch)
    N, chunk = 10 * K, 32 * K
    with Largest() as seen:  # type: ignore[no-untyped-call]
        found = clustered(torch.ones(N, 3), torch.ones(N), K, 2, chunk=chunk)
    assert len(set(found.tolist())) == K
    assert chunk <= seen.numbers <= 2 * chunk
    assert seen.numbers < N * K


def test_memory_layout_does_not_decide_near_ties() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(60):
        # Starting centres are 0, 100 and 100 again, so cluster 2 is empty. It takes v or v reversed,
        # which cost the same up to the order in which the squares are added.
        v = torch.randn(33, generator=g)
        x = torch.stack([torch.zeros(33), v, v.flip(0), *torch.full((4, 33), 100.0)])
        expected = clustered(x, torch.ones(7), 3, 1, chunk=24)
        assert expected[1:3].tolist() in ([2, 0], [0, 2])
        assert torch.equal(clustered(x.T.contiguous().T, torch.ones(7), 3, 1, chunk=24), expected)


def test_inputs_are_left_as_they_were_and_the_result_is_the_callers() -> None:
    x, a = random_case(50, 4, 0)
    before = x.clone(), a.clone()
    clustered(x, a, 12, 8).zero_()
    clustered(x.requires_grad_(), a, 12, 8)
    assert torch.equal(x, before[0])
    assert torch.equal(a, before[1])
    identity = clusters_of_heads(torch.zeros(2, 3, 2), torch.ones(2, 3), 3, 8)
    identity[0, 0] = 2
    assert identity[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("power", [-140, -60, 3, 100])
def test_a_common_factor_of_the_weights_cancels(power: int) -> None:
    x, a = random_case(120, 6, 3, torch.float32)
    a = (a * 64).round() + 1  # few digits: exact even where 2^-140 makes them subnormal
    scaled = torch.tensor([math.ldexp(float(w), power) for w in a])
    assert torch.equal(clustered(x, scaled, 30, 8), clustered(x, a, 30, 8))


def test_weights_matter_and_zero_weights_fall_back_to_plain_means() -> None:
    x, a = random_case(120, 6, 3)
    plain = clustered(x, torch.ones_like(a), 30, 8)
    assert not torch.equal(clustered(x, a, 30, 8), plain)
    assert torch.equal(clustered(x, torch.zeros_like(a), 30, 8), plain)


@pytest.mark.parametrize("K", [20, 21, 1000])
@pytest.mark.parametrize("block", [None, 6])
def test_enough_clusters_is_the_identity(K: int, block: int | None) -> None:
    x, a = random_case(20, 3, 0)
    x[4] = x[11]
    assert clustered(x, a, K, 8, block).tolist() == list(range(20))


@pytest.mark.parametrize("block", [100, 101, 5000])
def test_one_block_is_plain_kmeans(block: int) -> None:
    x, a = random_case(100, 5, 7)
    assert torch.equal(clustered(x, a, 23, 8, block), clustered(x, a, 23, 8))
    assert not torch.equal(clustered(x, a, 23, 8, 50), clustered(x, a, 23, 8))


def test_a_full_block_keeps_equal_tokens_in_order() -> None:
    assert clustered(torch.ones(5, 2), torch.ones(5), 4, 3, 1).tolist() == [0, 1, 2, 2, 3]


def test_no_heads_have_no_clusters() -> None:
    assert clusters_of_heads(torch.zeros(0, 5, 2), torch.zeros(0, 5), 3, 8).shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": 0}, "clusters=0"),
        ({"clusters": -3}, "clusters=-3"),
        ({"iters": 0}, "iters=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"block": 0}, "block=0"),
        ({"x": torch.zeros(1, 0, 4), "weights": torch.zeros(1, 0)}, r"shape \(0, 4\)"),
        ({"x": torch.zeros(1, 5, 0)}, r"shape \(5, 0\)"),
        ({"x": torch.full((1, 5, 2), torch.nan)}, "size nan"),
        ({"x": torch.full((1, 5, 2), 1e19)}, r"size 1e\+19"),
        ({"x": torch.ones(1, 5, 2).half()}, "float16"),
        ({"weights": torch.ones(1, 5).double()}, "float64"),
        ({"weights": torch.tensor([[1.0, 1.0, -0.5, 1.0, 2.0]])}, "span -0.5 to 2"),
        ({"weights": torch.tensor([[1.0, torch.inf, 1.0, 1.0, 1.0]])}, "to inf"),
        ({"weights": torch.tensor([[1.0, torch.nan, 1.0, 1.0, 1.0]])}, "nan"),
    ],
)
@pytest.mark.parametrize("block", [None, 2])
def test_wrong_calls_name_the_value(change: dict[str, Any], message: str, block: int | None) -> None:
    call: dict[str, Any] = {
        "x": torch.ones(1, 5, 2),
        "weights": torch.ones(1, 5),
        "clusters": 2,
        "iters": 3,
        "block": block,
    }
    with pytest.raises(ValueError, match=message):
        clusters_of_heads(**(call | {"block": block} | change))
