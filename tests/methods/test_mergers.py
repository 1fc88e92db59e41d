"""Mergers that fold tokens into others: values computed by hand, and the formulas in loops."""

import math

import pytest
import torch
from torch import Tensor

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.parts import Merger
from kvfw.core.parts.spec import Kind
from kvfw.core.state.state import KVState, exact_state

FOLDING = ["nearest", "d2o", "lookm", "lookm(how=pivot)", "lookm(how=weighted)", "weightedkv", "keepkv(threshold=0)"]


def built(text: str) -> Merger:
    part = build_part(Kind.MERGER, text).value
    assert isinstance(part, Merger)
    return part


def state_of(keys: list[list[float]], values: list[float]) -> KVState:
    """One row and head; values of one coordinate."""
    key, value = torch.tensor(keys)[None, None], torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1)
    positions = torch.arange(float(len(keys)))[None]
    return exact_state(key, value, positions, positions >= 0)


def merged(text: str, state: KVState, weights: list[float], slots: int) -> KVState:
    return built(text).merge(state, torch.tensor(weights).view(1, 1, -1), torch.tensor([[slots]]))


def twins(*values: float) -> KVState:
    """Tokens of equal keys."""
    return state_of([[1.0, 0.5]] * len(values), list(values))


@pytest.mark.parametrize(
    ("text", "state", "weights", "expected"),
    [
        # v_k = 1, v_e = 3, cosine 1: weight 3/4, so (1 + 9/4) / (7/4).
        ("nearest", twins(1, 3), [1.0, 0.0], 1.857143),
        ("lookm(how=average)", twins(1, 3), [1.0, 0.0], 2.0),
        ("lookm(how=pivot)", twins(1, 3), [1.0, 0.0], 1.5),
        ("lookm(how=weighted)", twins(1, 3), [1.0, 0.0], 2.0),
        ("d2o", twins(1, 3), [1.0, 0.0], 2.0),
        # Attention .1 and .3, values 4 and 0.
        ("weightedkv", twins(4, 0), [0.1, 0.3], 1.0),
        ("keepkv", twins(4, 0), [0.1, 0.3], 1.0),
        # The dropped token has a third of the kept one's attention, and one kept token follows.
        ("cam", twins(3, 1), [0.1, 0.3], 2.0),
        ("compensation", twins(1, 3, 5), [0.0, 0.0, 0.0], 3.0),
    ],
)
def test_values_by_hand(text: str, state: KVState, weights: list[float], expected: float) -> None:
    found = merged(text, state, weights, 1)
    assert float(found.values) == pytest.approx(expected, rel=1e-5)
    kept = max(range(len(weights)), key=lambda i: weights[i])
    assert found.positions.tolist() == [[[kept]]]


def test_kvmerger_weighs_by_distance_from_the_pivot() -> None:
    found = merged("kvmerger", state_of([[0.0, 1.0], [0.0, 2.0]], [0.0, 1.0]), [1.0, 0.0], 1)
    # The only distance is sigma: exp(-1/2).
    assert float(found.values) == pytest.approx(0.377541, abs=1e-6)
    assert float(found.keys[..., 1]) == pytest.approx(1 + 0.377541, abs=1e-6)


def test_kvmerger_parts_the_least_similar_neighbours() -> None:
    keys = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [-1.0, 0.0]]
    found = merged("kvmerger", state_of(keys, [0.0, 0.0, 1.0, 1.0, 2.0]), [1.0] * 5, 3)
    assert found.mass.flatten().tolist() == [2, 2, 1]
    assert found.values.flatten().tolist() == [0, 1, 2]


def test_d2o_drops_what_is_less_alike_than_the_rest() -> None:
    state = state_of([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], [0.0, 10.0, 1000.0])
    found = merged("d2o", state, [1.0, 0.0, 0.0], 1)
    u = 1 / math.sqrt(1.01)
    weight = math.exp(u) / (math.exp(1) + math.exp(u))
    assert float(found.values) == pytest.approx(10 * weight, rel=1e-5)
    assert float(found.mass) == 2
    assert merged("d2o(threshold=0)", state, [1.0, 0.0, 0.0], 1).mass.item() == 3


@pytest.mark.parametrize("text", [*FOLDING, "cam", "compensation"])
def test_kept_tokens_stay_in_their_places(text: str) -> None:
    generator = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, 3, 19, 4, generator=generator), torch.randn(2, 3, 19, 4, generator=generator)
    positions = torch.arange(19.0).expand(2, 19)
    weights = torch.rand(2, 3, 19, generator=generator)
    budget = torch.tensor([[5, 1, 18], [9, 2, 7]])
    found = built(text).merge(exact_state(keys, values, positions, positions >= 0), weights, budget)
    for row in range(2):
        for head in range(3):
            heaviest = weights[row, head].argsort(descending=True)[: int(budget[row, head])].sort().values
            places = found.positions[row, head][found.valid[row, head]]
            assert places.tolist() == heaviest.tolist()


def slow_fold(text: str, keys: Tensor, values: Tensor, kept: list[int]) -> list[Tensor]:
    """Values of the kept tokens of one head, by loops over what joins each."""
    unit = keys / keys.norm(dim=-1, keepdim=True)
    groups: dict[int, list[tuple[int, float]]] = {k: [] for k in kept}
    for e in set(range(len(keys))) - set(kept):
        cosines = [float(unit[e] @ unit[k]) for k in kept]
        best = max(range(len(kept)), key=lambda i: cosines[i])
        groups[kept[best]].append((e, cosines[best]))
    found = []
    for k, joined in groups.items():
        own = values[k]
        if text == "lookm":
            new = sum((values[e] for e, _ in joined), own) / (len(joined) + 1)
        elif text == "lookm(how=pivot)":
            new = sum(((own + values[e]) / 2 for e, _ in joined), own) / (len(joined) + 1)
        elif text == "lookm(how=weighted)":
            positive = [(e, max(u, 0.0)) for e, u in joined]
            new = sum((u * values[e] for e, u in positive), own) / (1 + sum(u for _, u in positive))
        else:
            shares = [(e, u * float(values[e].norm() / (values[e].norm() + own.norm()))) for e, u in joined if u >= 0]
            new = sum((w * values[e] for e, w in shares), own) / (1 + sum(w for _, w in shares))
        found.append(new)
    return found


@pytest.mark.parametrize("text", ["lookm", "lookm(how=pivot)", "lookm(how=weighted)", "nearest"])
def test_folding_is_its_formula_in_loops(text: str) -> None:
    generator = torch.Generator().manual_seed(3)
    keys, values = torch.randn(1, 2, 17, 4, generator=generator), torch.randn(1, 2, 17, 4, generator=generator)
    positions, weights = torch.arange(17.0)[None], torch.rand(1, 2, 17, generator=generator)
    budget = torch.tensor([[5, 8]])
    found = built(text).merge(exact_state(keys, values, positions, positions >= 0), weights, budget)
    for head in range(2):
        kept = weights[0, head].argsort(descending=True)[: int(budget[0, head])].sort().values.tolist()
        expected = torch.stack(slow_fold(text, keys[0, head], values[0, head], kept))
        torch.testing.assert_close(found.values[0, head, -len(kept) :], expected)


def test_keepkv_keeps_what_the_query_reads() -> None:
    """Weights are the query's own attention: its output over the merged slots is that over all tokens."""
    generator = torch.Generator().manual_seed(5)
    keys, values = torch.rand(1, 1, 12, 4, generator=generator), torch.randn(1, 1, 12, 3, generator=generator)
    query = torch.randn(4, generator=generator)
    attention = torch.softmax(keys @ query, -1)
    positions = torch.arange(12.0)[None]
    state = exact_state(keys, values, positions, positions >= 0)
    found = built("keepkv(threshold=-1)").merge(state, attention, torch.tensor([[5]]))
    after = torch.softmax(found.keys @ query + found.bias, -1)
    torch.testing.assert_close(after[..., None, :] @ found.values, attention[..., None, :] @ values)
    # With all masses counted and no bias of their own the output would be another.
    plain = torch.softmax(found.keys @ query + found.mass.log(), -1)
    assert not torch.allclose(plain[..., None, :] @ found.values, attention[..., None, :] @ values, atol=1e-3)
