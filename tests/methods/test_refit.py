"""Refits of biases and values against their formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import lsq_linear
from torch import Tensor

from helpers.observations import check_well_formed, observe, random_row, reordered, rows_of, same_bits
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.ops.least_squares import solved_within
from kvfw.core.state.observation import PROMPT, Needs, Observation, References
from kvfw.core.state.state import KVState, exact_state
from kvfw.methods.refiners.refit import Refit

SINKS, RECENT = 2, 3
COUNT = 1024
PROBE, READ = References(COUNT, "repeat"), References(COUNT, PROMPT)


def seen(lengths: list[int], *, asked: int = 60, dtype: torch.dtype = torch.float32) -> Observation:
    """Random rows with reference queries of a probe (shorter rows have fewer) and of the prompt itself."""
    rows = [random_row(length, seed, dtype=dtype) for seed, length in enumerate(lengths)]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=max(lengths))
    assert obs.queries is not None
    assert obs.query_positions is not None
    probes = []
    for seed, length in enumerate(lengths):
        g = torch.Generator().manual_seed(seed + 99)
        own = torch.randn(obs.queries.shape[1], asked + length - max(lengths), obs.queries.shape[-1], generator=g)
        probes.append((own.to(dtype), length + torch.arange(own.shape[1], dtype=torch.float32)))
    pad = torch.nn.functional.pad
    queries = torch.stack([pad(q, (0, 0, asked - q.shape[1], 0), value=50.0) for q, _ in probes])
    positions = torch.stack([pad(p, (asked - len(p), 0), value=-1.0) for _, p in probes])
    return replace(obs, references={PROBE: (queries, positions), READ: (obs.queries, obs.query_positions)}, layer=0)


def only(obs: Observation, row: int) -> Observation:
    """One row of an observation, padding included."""
    references = {each: (q[[row]], p[[row]]) for each, (q, p) in obs.references.items()}
    return replace(reordered(replace(obs, references={}), [row]), references=references)


def compressed(text: str, obs: Observation, budget: int | Tensor) -> KVState:
    each = torch.full(obs.protected.shape[:2], budget) if isinstance(budget, int) else budget
    return compressor(parse(text), amount(ratio=2), sinks=SINKS, recent=RECENT).compress(obs, each)


def slow_attention(
    obs: Observation, state: KVState, row: int, head: int, queries: Tensor, positions: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unnormalised attention ``e^logit`` of a head's queries to its valid slots, their values, and the sinks' terms."""
    group = queries.shape[1] // state.keys.shape[1]
    slots = [j for j in range(state.width) if state.mass[row, head, j] > 0]
    found, sinks = [], []
    for h in range(head * group, (head + 1) * group):
        for i in range(queries.shape[2]):
            if positions[row, i] < 0:
                continue
            terms = []
            for j in slots:
                logit = obs.scale * float(queries[row, h, i].double() @ state.keys[row, head, j].double())
                logit = obs.softcap * math.tanh(logit / obs.softcap) if obs.softcap else logit
                visible = state.positions[row, head, j] <= positions[row, i]
                terms.append(math.exp(logit + float(state.bias[row, head, j])) if visible else 0.0)
            found.append(terms)
            sinks.append(0.0 if obs.sink_logits is None else math.exp(float(obs.sink_logits[h])))
    values = np.array([state.values[row, head, j].double().numpy() for j in slots])
    return np.array(found), values, np.array(sinks)


def slow_refit(obs: Observation, state: KVState, row: int, head: int, refit: Refit) -> tuple[np.ndarray, np.ndarray]:
    """Biases and values of a head's valid slots, by numpy and scipy."""
    queries, positions = obs.references[READ if refit.queries == "prompt" else PROBE]
    full, full_values, sinks = slow_attention(obs, obs.state, row, head, queries, positions)
    kept, values, _ = slow_attention(obs, state, row, head, queries, positions)
    denominator = full.sum(1) + sinks
    count = kept.shape[1]
    fitted = np.arange(count) if refit.over == "all" else np.arange(SINKS, count - RECENT)
    other = np.setdiff1d(np.arange(count), fitted)

    def damped(x: np.ndarray, y: np.ndarray, towards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        root = math.sqrt(refit.ridge) * np.linalg.norm(x, 2)
        return np.vstack([x, root * np.eye(x.shape[1])]), np.concatenate([y, root * towards])

    factors = np.ones(count)
    if refit.bias:
        x = kept[:, fitted] / denominator[:, None]
        y = (full.sum(1) - kept[:, other].sum(1)) / denominator
        a, b = damped(x, y, np.ones(len(fitted)))
        factors[fitted] = lsq_linear(a, b, (math.exp(-3), math.exp(3)), method="bvls", tol=1e-14).x
    new = values.copy()
    if refit.values:
        weights = kept * factors
        weights = weights / (weights.sum(1) + sinks)[:, None]
        y = full @ full_values / denominator[:, None] - weights[:, other] @ values[other]
        a, b = damped(weights[:, fitted], y, values[fitted])
        new[fitted] = np.linalg.lstsq(a, b, rcond=None)[0]
    valid = state.valid[row, head]
    return state.bias[row, head, valid].double().numpy() + np.log(factors), new


def error(obs: Observation, state: KVState, row: int, head: int, queries: Tensor, positions: Tensor) -> float:
    """Mean squared error of a head's attention output against the full cache's."""
    outputs = []
    for each in (obs.state, state):
        weights, values, sinks = slow_attention(obs, each, row, head, queries, positions)
        outputs.append(weights @ values / (weights.sum(1) + sinks)[:, None])
    return float(np.square(outputs[0] - outputs[1]).mean())


def two_queries() -> tuple[Observation, KVState]:
    """Exponentials of the logits (1, 2, 1) and (1, 1, 2) over values 0, 3, 6; the second and third slot are kept."""
    two = math.log(2)
    real = torch.ones(1, 3, dtype=torch.bool)
    keys = torch.tensor([[[[0.0, 0.0], [two, 0.0], [0.0, two]]]])
    values = torch.tensor([[[[0.0], [3.0], [6.0]]]])
    state = exact_state(keys, values, torch.arange(3.0)[None], real)
    obs = Observation(
        state=state,
        protected=torch.zeros(1, 1, 3, dtype=torch.bool),
        scale=1.0,
        layer=0,
        references={PROBE: (torch.eye(2)[None, None], torch.tensor([[3.0, 4.0]]))},
    )
    return obs, KVState(*(part[:, :, 1:] for part in state.parts))


def test_refit_solves_two_queries_and_two_slots_exactly() -> None:
    obs, kept = two_queries()
    state = Refit(ridge=0.0).refine(kept, obs)
    assert state.bias.flatten().tolist() == pytest.approx([math.log(4 / 3)] * 2, abs=1e-6)
    assert state.values.flatten().tolist() == pytest.approx([2.25, 4.5], abs=1e-5)


def test_refit_of_the_biases_alone_keeps_the_values_and_the_mass() -> None:
    obs, kept = two_queries()
    state = Refit(values=False, ridge=0.0).refine(kept, obs)
    assert torch.equal(state.values, kept.values)
    assert state.bias.exp().flatten().tolist() == pytest.approx([4 / 3] * 2)


def test_refit_of_the_values_alone_keeps_the_biases_and_the_outputs() -> None:
    obs, kept = two_queries()
    state = Refit(bias=False, ridge=0.0).refine(kept, obs)
    assert torch.equal(state.bias, kept.bias)
    assert state.values.flatten().tolist() == pytest.approx([2.25, 4.5], abs=1e-5)


@pytest.mark.parametrize("source", ["probe", "prompt"])
@pytest.mark.parametrize("over", ["middle", "all"])
@pytest.mark.parametrize("composition", ["snapkv", "snapkv:0.5+ewmeans_pre(bias=log):0.5", "ewmeans_post"])
def test_refit_gives_what_the_formula_gives(source: str, over: str, composition: str) -> None:
    obs = seen([31, 24])
    kept = compressed(composition, obs, torch.tensor([[6, 9], [4, 7]]))
    refit = Refit.model_validate({"queries": source, "over": over, "ridge": 1e-4})
    state = refit.refine(kept, obs)
    for row, head in np.ndindex(2, 2):
        valid = kept.valid[row, head]
        bias, values = slow_refit(obs, kept, row, head, refit)
        np.testing.assert_allclose(state.bias[row, head, valid].numpy(), bias, atol=2e-3)
        np.testing.assert_allclose(state.values[row, head, valid].numpy(), values, atol=2e-3)


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"sink_logits": torch.tensor([0.5, 3.0, -1.0, 2.0])}])
def test_refit_sees_the_models_cap_and_its_sinks(options: dict[str, object]) -> None:
    obs = replace(seen([26]), **options)  # type: ignore[arg-type]
    kept = compressed("snapkv", obs, 6)
    refit = Refit(ridge=1e-4)
    state = refit.refine(kept, obs)
    for head in range(2):
        bias, values = slow_refit(obs, kept, 0, head, refit)
        np.testing.assert_allclose(state.bias[0, head].numpy(), bias, atol=2e-3)
        np.testing.assert_allclose(state.values[0, head].numpy(), values, atol=2e-3)


@pytest.mark.parametrize("over", ["middle", "all"])
@pytest.mark.parametrize("composition", ["snapkv", "uniform", "snapkv:0.5+ewmeans_pre:0.5"])
def test_refit_lowers_the_error_of_the_outputs(composition: str, over: str) -> None:
    obs = seen([40, 33])
    kept = compressed(composition, obs, 8)
    state = compressed(f"{composition}|refit(over={over})", obs, 8)
    check_well_formed(state)
    queries, positions = obs.references[PROBE]
    for row, head in np.ndindex(2, 2):
        before, after = (error(obs, each, row, head, queries, positions) for each in (kept, state))
        assert after < 0.7 * before


def test_refit_leaves_sinks_and_recent_tokens_alone_unless_told_otherwise() -> None:
    obs = seen([30])
    kept = compressed("snapkv", obs, 7)
    ends = torch.tensor([*range(SINKS), *range(kept.width - RECENT, kept.width)])
    state = compressed("snapkv|refit", obs, 7)
    assert torch.equal(state.values[:, :, ends], kept.values[:, :, ends])
    assert torch.equal(state.bias[:, :, ends], kept.bias[:, :, ends])
    everything = compressed("snapkv|refit(over=all)", obs, 7)
    assert bool((everything.values[:, :, ends] != kept.values[:, :, ends]).any(-1).all())


def test_refit_changes_nothing_where_every_token_is_kept() -> None:
    obs = seen([30])
    kept = compressed("snapkv", obs, torch.tensor([[25, 9]]))
    for options in ("", "(over=all)"):
        state = compressed(f"snapkv|refit{options}", obs, torch.tensor([[25, 9]]))
        assert same_bits(head_of(state, 0), head_of(kept, 0))
        assert not same_bits(head_of(state, 1), head_of(kept, 1))


def head_of(state: KVState, head: int) -> KVState:
    return KVState(*(part[:, [head]] for part in state.parts))


def test_refit_leaves_a_head_without_middle_slots_as_it_is() -> None:
    obs, budget = seen([30]), torch.tensor([[0, 9]])
    kept, state = compressed("snapkv", obs, budget), compressed("snapkv|refit", obs, budget)
    assert same_bits(head_of(state, 0), head_of(kept, 0))
    assert not same_bits(head_of(state, 1), head_of(kept, 1))


@pytest.mark.parametrize("source", ["probe", "prompt"])
def test_refit_of_a_row_is_the_same_alone_and_in_a_padded_batch(source: str) -> None:
    obs, budget = seen([31, 24, 19]), torch.tensor([[6, 9], [4, 7], [5, 0]])
    text = f"snapkv|refit(queries={source})"
    together = compressed(text, obs, budget)
    for row in range(3):
        alone = compressed(text, only(obs, row), budget[[row]])
        width = alone.width
        assert same_bits(KVState(*(part[:, :, -width:] for part in rows_of(together, [row]).parts)), alone)


def test_refit_stays_close_with_more_slots_than_queries() -> None:
    obs = seen([60], asked=4)
    kept, state = compressed("snapkv", obs, 30), compressed("snapkv|refit", obs, 30)
    assert float((state.values - kept.values).abs().max()) < 10 * float(kept.values.abs().max())


def test_refit_with_as_many_queries_as_slots_still_helps_other_queries() -> None:
    obs = seen([120], asked=20)
    heads, size = obs.state.keys.shape[1], obs.state.keys.shape[-1]
    group = obs.references[PROBE][0].shape[1] // heads
    others = torch.randn(1, heads * group, 200, size, generator=torch.Generator().manual_seed(5))
    late = torch.full((1, 200), 500.0)
    kept = compressed("snapkv", obs, 20 * group)
    default, plain = Refit().refine(kept, obs), Refit(ridge=0.0).refine(kept, obs)
    for head in range(heads):
        assert error(obs, default, 0, head, others, late) < 0.6 * error(obs, kept, 0, head, others, late)
    assert any(error(obs, plain, 0, h, others, late) > error(obs, kept, 0, h, others, late) for h in range(heads))


def test_refit_of_bfloat16_keeps_the_type_and_is_close_to_that_of_float32() -> None:
    obs = seen([40], dtype=torch.bfloat16)
    exact = {each: (q.float(), p) for each, (q, p) in obs.references.items()}
    state = replace(obs.state, keys=obs.state.keys.float(), values=obs.state.values.float())
    wide = replace(obs, state=state, references=exact)
    kept = compressed("position", obs, 10)
    low, high = Refit().refine(kept, obs), Refit().refine(compressed("position", wide, 10), wide)
    assert low.values.dtype == torch.bfloat16
    torch.testing.assert_close(low.bias, high.bias)
    torch.testing.assert_close(low.values, high.values.to(torch.bfloat16))


def test_refit_needs_something_to_refit() -> None:
    with pytest.raises(ValidationError, match="set bias or values to true"):
        Refit(bias=False, values=False)


def test_refit_asks_for_queries_of_its_source_only() -> None:
    assert Refit().needs == Needs(references=frozenset({PROBE}))
    assert Refit(queries="prompt", count=7).needs == Needs(references=frozenset({References(7, PROMPT)}))
    assert Refit(probe="a.txt").needs.probes == {"a.txt"}


@pytest.mark.parametrize("seed", range(10))
def test_bounded_least_squares_finds_the_optimum(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(40, 15, generator=g, dtype=torch.float64) ** 4
    y = torch.rand(40, generator=g, dtype=torch.float64) * 2
    low, high = 0.1, 1.5
    found = solved_within(x.T @ x, x.T @ y, low, high)
    best = lsq_linear(x.numpy(), y.numpy(), (low, high), method="bvls", tol=1e-14).x
    np.testing.assert_allclose(found.numpy(), best, atol=1e-6)
