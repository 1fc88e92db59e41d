"""critical and criticalkv: values computed by hand, and the two stages in loops."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.observations import SCALE, PromptRow, observe, random_row, slots_of
from helpers.slow import Vector, slow_snapkv, slow_topk
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.ops.projection import projected_norms
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import KVState, exact_state
from kvfw.errors import RunError, SpecError
from kvfw.methods.selectors.critical import Critical

SINKS, RECENT, LENGTHS = 2, 3, (25, 19)


def projection(heads: int) -> Tensor:
    """A weight of 7 outputs for so many query heads of 5 coordinates."""
    return torch.randn(7, heads * 5, generator=torch.Generator().manual_seed(9))


def padded_rows(group: int) -> tuple[list[PromptRow], Observation]:
    """Two rows of different length; values of padding are NaN."""
    rows = [random_row(length, seed, group=group) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=8)
    hidden = obs.state.values.masked_fill(~obs.state.valid[..., None], torch.nan)
    return rows, replace(obs, state=replace(obs.state, values=hidden), output_projection=projection(2 * group))


def slow_norm(value: Vector, weight: list[Vector], norm: str) -> float:
    out = [sum(w * v for w, v in zip(line, value, strict=True)) for line in weight]
    return sum(map(abs, out)) if norm == "l1" else sum(x * x for x in out) ** 0.5


def slow_critical(scores: Vector, norms: Vector, budget: int, share: float, epsilon: float) -> list[int]:
    first = slow_topk(scores, int(budget * share + 1e-9))
    second = [-1.0 if j in first else (s + epsilon) * n for j, (s, n) in enumerate(zip(scores, norms, strict=True))]
    return sorted(first + slow_topk(second, budget - len(first)))


def slow_effects(row: PromptRow, head: int, group: int, norm: str) -> Vector:
    """Mean over the group of every slot's norm."""
    weight = projection(2 * group).double()
    slices = [weight[:, h * 5 : (h + 1) * 5].tolist() for h in range(head * group, (head + 1) * group)]
    values = row.values[head].double().tolist()
    return [sum(slow_norm(value, each, norm) for each in slices) / group for value in values]


def of_norms(norms: list[float]) -> Observation:
    """One head of one coordinate, the projection the identity, so that these are the values' norms."""
    values = torch.tensor(norms, dtype=torch.float32).view(1, 1, -1, 1)
    positions = torch.arange(float(len(norms)))[None]
    state = exact_state(values, values, positions, positions >= 0)
    protected = torch.zeros_like(state.valid)
    return Observation(state=state, protected=protected, scale=1.0, layer=0, output_projection=torch.ones(1, 1))


def chosen(part: Critical, scores: list[float], budget: int, obs: Observation) -> list[int]:
    mask = part.select(
        torch.tensor(scores, dtype=torch.float32).view(1, 1, -1), torch.tensor([[budget]]), obs.middle, obs
    )
    found: list[int] = mask[0, 0].nonzero().flatten().tolist()
    return found


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_value_computed_by_hand(norm: str) -> None:
    obs = of_norms([1, 1, 4, 2])
    part = Critical.model_validate({"norm": norm})
    assert chosen(part, [0.5, 0.3, 0.1, 0.1], 2, obs) == [0, 2]
    assert chosen(Critical(share=1), [0.5, 0.3, 0.1, 0.1], 2, obs) == [0, 1]


def test_without_attention_epsilon_leaves_the_norms() -> None:
    obs = of_norms([1, 3, 2, 4])
    assert chosen(Critical(share=0), [0, 0, 0, 0], 2, obs) == [1, 3]
    assert chosen(Critical(share=0, epsilon=0), [0, 0, 0, 0], 2, obs) == [0, 1]


@pytest.mark.parametrize("share", [0.29, 0.5, 0.07])
def test_the_first_stage_takes_the_exact_share(share: float) -> None:
    """In floats 0.29 * 100 and 0.07 * 100 are not whole."""
    scores, norms = [float(200 - j) for j in range(200)], [1e-9] * 100 + [1e9] * 100
    found = chosen(Critical(share=share), scores, 100, of_norms(norms))
    assert sum(j < 100 for j in found) == round(share * 100)


def test_an_infinite_score_of_a_value_without_effect_is_no_number() -> None:
    assert len(chosen(Critical(share=0), [torch.inf, 1, torch.inf, 1], 3, of_norms([0, 1, 1, 1]))) == 3


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("group", [1, 3])
def test_norms_are_those_of_the_projected_values(group: int, norm: str) -> None:
    row = random_row(9, 3, group=group)
    take: Callable[..., Tensor] = projected_norms
    found = take(row.values[None], projection(2 * group), norm)
    assert found.shape == (1, 2, group, 9)
    for head in range(2):
        expected = torch.tensor(slow_effects(row, head, group, norm), dtype=torch.float32)
        torch.testing.assert_close(found[0, head].mean(0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("text", "share", "epsilon", "norm"),
    [
        ("criticalkv(scorer=snapkv(window=8))", 0.5, 1e-4, "l2"),
        ("criticalkv(scorer=snapkv(window=8),share=0.2,epsilon=0.05,norm=l1)", 0.2, 0.05, "l1"),
    ],
)
def test_both_stages_keep_what_the_formula_keeps(
    text: str, share: float, epsilon: float, norm: str, group: int
) -> None:
    rows, obs = padded_rows(group)
    budget = torch.tensor([[6, 3], [5, 9]])
    state = compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT).compress(obs, budget)
    for i, row in enumerate(rows):
        for head in range(2):
            queries = row.queries[head * group : (head + 1) * group]
            window = {"window": 8, "kernel": 7, "pool": "avg", "sinks": SINKS, "recent": RECENT}
            scores = slow_snapkv(queries, row.keys[head], SCALE, **window)  # type: ignore[arg-type]
            norms = slow_effects(row, head, group, norm)[SINKS:-RECENT]
            slots = slow_critical(scores, norms, int(budget[i, head]), share, epsilon)
            ends = [*range(SINKS), *[SINKS + j for j in slots], *range(row.length - RECENT, row.length)]
            assert positions(state, i, head) == ends


def positions(state: KVState, row: int, head: int) -> list[int]:
    return [int(slot.position) for slot in slots_of(state, row, head)]


def test_an_allocator_ranks_by_the_scorer() -> None:
    both = [
        compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT).rules[0]
        for text in ("criticalkv@adakv", "snapkv@adakv")
    ]
    assert both[0].ranking == both[1].ranking
    assert both[0].needs == both[1].needs | Needs(projection=True)


def test_wrong_options_are_refused() -> None:
    for text in ("criticalkv(share=2)", "criticalkv(norm=l3)", "criticalkv(epsilon=-1)", "criticalkv(scorer=topk)"):
        with pytest.raises(SpecError):
            parse(text)


def test_critical_ranks_negative_scores_as_if_the_least_were_0() -> None:
    scores, budget = torch.tensor([[[-4.0, -3.0, -2.0, -1.0]]]), torch.tensor([[1]])
    eligible = torch.ones(1, 1, 4, dtype=torch.bool)
    chosen = Critical(share=0).select(scores, budget, eligible, of_norms([9.0, 5.0, 1.0, 2.0]))
    # (s - least) c = 0, 5, 2, 6
    assert chosen.tolist() == [[[False, False, False, True]]]


def test_vatp_refuses_negative_scores() -> None:
    _, obs = padded_rows(2)
    with pytest.raises(RunError, match=r"gives negative ones; use a scorer whose scores are 0 or more"):
        compressor(parse("vatp(scorer=knorm)"), amount(ratio=2), sinks=SINKS, recent=RECENT).compress(
            obs, torch.full(obs.protected.shape[:2], 6)
        )
