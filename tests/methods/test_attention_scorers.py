"""snapkv with maxima, tova, vatp and dropkv: values computed by hand, and their formulas in loops."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.observations import SCALE, PromptRow, observe, random_row, with_hidden_padding
from helpers.slow import Vector, dot, slow_attention, slow_pool, slow_received
from kvfw.core.compose.build import build_part
from kvfw.core.compose.composition import parse
from kvfw.core.contracts.parts import Scorer
from kvfw.core.ops.rows import window_rows
from kvfw.core.parts.part import is_comparable
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import exact_state
from kvfw.errors import SpecError
from kvfw.methods.scorers.dropkv import DropKV
from kvfw.methods.scorers.knorm import KNorm
from kvfw.methods.scorers.probed import AttentionFromProbe
from kvfw.methods.scorers.shifting import Shifting
from kvfw.methods.scorers.snapkv import SnapKV
from kvfw.methods.scorers.tova import TOVA
from kvfw.methods.scorers.vatp import VATP

SINKS, RECENT, LENGTHS = 2, 3, (21, 15)


def built(text: str) -> Scorer:
    """A scorer of a composition."""
    part = build_part(Kind.SCORER, text).value
    assert isinstance(part, Scorer)
    return part


def attending(attention: Sequence[Sequence[float]], values: Sequence[float]) -> Observation:
    """One row whose last query gives every KV head this attention; values of one coordinate; all of it middle."""
    heads, length = len(attention), len(values)
    keys = torch.tensor(attention).log()[None, ..., None]
    positions = torch.arange(float(length))[None]
    value = torch.tensor(values, dtype=torch.float32).view(1, 1, length, 1).expand(1, heads, length, 1)
    state = exact_state(keys, value, positions, positions >= 0)
    return Observation(
        state=state,
        protected=torch.zeros_like(state.valid),
        scale=1.0,
        layer=0,
        queries=torch.ones(1, heads, 1, 1),
        query_positions=positions[:, -1:],
    )


def padded_rows(group: int) -> tuple[list[PromptRow], Observation]:
    """Two rows of different length; whatever padding holds is NaN."""
    rows = [random_row(length, seed, group=group) for seed, length in enumerate(LENGTHS)]
    obs = observe(rows, sinks=SINKS, recent=RECENT, window=max(LENGTHS))
    return rows, with_hidden_padding(obs)


def narrowed(scorer: Scorer, obs: Observation) -> Tensor:
    return scorer.score(obs.narrowed(scorer.needs))


def group_of(row: PromptRow, head: int) -> Tensor:
    size = row.queries.shape[0] // row.keys.shape[0]
    return row.queries[head * size : (head + 1) * size].double()


def check(scores: Tensor, row: int, head: int, expected: Vector, *, middle: bool = False) -> None:
    """The last slots' scores of a head, or those of its middle."""
    found = scores[row, head, -LENGTHS[row] :]
    found = found[SINKS:-RECENT] if middle else found
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(("window", "kernel", "pool"), [(1, 1, "avg"), (4, 3, "max"), (84, 5, "avg")])
def test_snapkv_can_take_maxima_over_queries_and_group(group: int, window: int, kernel: int, pool: str) -> None:
    rows, obs = padded_rows(group)
    scores = narrowed(built(f"snapkv(window={window},kernel={kernel},pool={pool},reduce=max)"), obs)
    for i, row in enumerate(rows):
        first = max(0, row.length - window)
        for head in range(2):
            maps = [slow_attention(q, row.keys[head].double(), SCALE) for q in group_of(row, head)]
            peaks = [max(a[i][j] for a in maps for i in range(first, row.length)) for j in range(row.length)]
            check(scores, i, head, slow_pool(peaks[SINKS:-RECENT], kernel, pool), middle=True)


def test_snapkv_takes_means_unless_told() -> None:
    assert SnapKV().reduce == "mean"
    assert str(parse("snapkv(reduce=mean)")) == "snapkv"
    with pytest.raises(SpecError, match="reduce"):
        parse("snapkv(reduce=sum)")


def test_tova_is_the_last_querys_attention_over_all_heads() -> None:
    scores = TOVA().score(attending([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], [0, 0, 0]))
    torch.testing.assert_close(scores, torch.tensor([0.3, 0.4, 0.3]).expand(1, 2, 3))


@pytest.mark.parametrize("group", [1, 3])
def test_tova_scores_every_head_alike(group: int) -> None:
    rows, obs = padded_rows(group)
    scores = narrowed(TOVA(), obs)
    for i, row in enumerate(rows):
        keys = row.keys.double().repeat_interleave(group, 0)
        maps = [slow_attention(q, k, SCALE)[-1] for q, k in zip(row.queries.double(), keys, strict=True)]
        for head in range(2):
            check(scores, i, head, [sum(column) / len(maps) for column in zip(*maps, strict=True)])


def test_vatp_weighs_attention_by_the_values_l1_norm() -> None:
    obs = attending([[0.5, 0.3, 0.2]], [1, -4, 2])
    scores = built("vatp").score(replace(obs, column_sums={0: torch.tensor([[[0.5, 0.3, 0.2]]])}))
    torch.testing.assert_close(scores.flatten(), torch.tensor([0.5, 1.2, 0.4]))


def test_vatp_weighs_column_sums_unless_told() -> None:
    rows, obs = padded_rows(3)
    scores = narrowed(built("vatp"), obs)
    for i, row in enumerate(rows):
        for head in range(2):
            sums = slow_received(group_of(row, head), row.keys[head].double(), SCALE, 0)
            norms = [sum(map(abs, value)) for value in row.values[head].double().tolist()]
            check(scores, i, head, [a * n for a, n in zip(sums, norms, strict=True)])


def test_vatp_can_weigh_any_scorer() -> None:
    _, obs = padded_rows(2)
    inner = built("snapkv(window=4)")
    norms = obs.state.values.float().abs().sum(-1)
    found, expected = narrowed(built("vatp(scorer=snapkv(window=4))"), obs), narrowed(inner, obs) * norms
    torch.testing.assert_close(found[obs.middle], expected[obs.middle])
    assert built("vatp(scorer=snapkv(window=4))").needs == inner.needs
    assert is_comparable(built("vatp"))
    assert not is_comparable(VATP(scorer=KNorm()))


def test_dropkv_is_the_change_of_the_output() -> None:
    scores = DropKV(kernel=1).score(attending([[0.5, 0.3, 0.2]], [0, 1, 2]))
    torch.testing.assert_close(scores.flatten(), torch.tensor([0.49, 0.0165306, 0.105625]))


def slow_change(p: Vector, values: list[Vector], j: int) -> float:
    """Squared change of the output when slot j is dropped and the others' attention is renormalised."""

    def output(members: list[int]) -> Vector:
        total = sum(p[m] for m in members)
        return [sum(p[m] * values[m][d] for m in members) / total for d in range(len(values[0]))]

    everything = [m for m in range(len(p)) if p[m] > 0]
    if j not in everything:
        return 0.0
    change = [a - b for a, b in zip(output(everything), output([m for m in everything if m != j]), strict=True)]
    return dot(change, change)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(("window", "kernel"), [(1, 1), (5, 3)])
def test_dropkv_is_the_change_when_a_slot_is_really_dropped(group: int, window: int, kernel: int) -> None:
    rows, obs = padded_rows(group)
    scores = narrowed(DropKV(window=window, kernel=kernel), obs)
    for i, row in enumerate(rows):
        for head in range(2):
            values = row.values[head].double().tolist()
            maps = [slow_attention(q, row.keys[head].double(), SCALE)[-window:] for q in group_of(row, head)]
            changes = [
                sum(slow_change(p, values, j) for rows_ in maps for p in rows_) / group for j in range(row.length)
            ]
            check(scores, i, head, slow_pool(changes[SINKS:-RECENT], kernel, "avg"), middle=True)


def test_dropkv_of_a_token_that_has_nearly_all_the_attention_is_not_lost_in_rounding() -> None:
    attention, values = [0.999, 0.0006, 0.0004], [50.0, 49.0, 47.0]
    total = sum(attention)
    slow = [slow_change([a / total for a in attention], [[v] for v in values], j) for j in range(3)]
    scores = DropKV(kernel=1).score(attending([attention], values)).flatten()
    torch.testing.assert_close(scores, torch.tensor(slow), rtol=2e-3, atol=0)


def test_dropkv_of_a_token_that_has_all_the_attention_is_bounded() -> None:
    scores = DropKV(kernel=1).score(attending([[1 - 1e-9, 1e-9, 1e-9]], [5, 1, 2]))
    assert scores.isfinite().all()


def test_dropkv_counts_a_models_own_sinks_and_caps() -> None:
    """A head's sink takes attention, which a drop then redistributes over one slot fewer and the sink."""
    obs = replace(attending([[0.5, 0.3, 0.2]], [0, 1, 2]), sink_logits=torch.zeros(1), softcap=2.0)
    (rows,) = window_rows(obs)
    logits = [2 * math.tanh(math.log(p) / 2) for p in (0.5, 0.3, 0.2)]
    total = 1 + sum(map(math.exp, logits))
    torch.testing.assert_close(rows.flatten(), torch.tensor([math.exp(logit) / total for logit in logits]))


@pytest.mark.parametrize("scorer", [TOVA(), DropKV()])
def test_they_share_a_unit_over_heads(scorer: Scorer) -> None:
    assert is_comparable(scorer)


def test_shifting_adds_variance_to_the_mean_by_hand() -> None:
    """A token that gets .1 and .3 from two queries: mean .2, variance .02."""
    logits = torch.tensor([[0.1, 0.6, 0.3], [0.3, 0.5, 0.2]]).log()
    keys = logits.T[None, None]  # the i-th query is the i-th unit vector, so that logits are what they are here
    positions = torch.arange(3.0)[None]
    state = exact_state(keys, keys[..., :1], positions, positions >= 0)
    obs = Observation(
        state=state,
        protected=torch.zeros_like(state.valid),
        scale=1.0,
        layer=0,
        queries=torch.eye(2)[None, None],
        query_positions=torch.tensor([[2.0, 2.0]]),
    )
    assert Shifting(window=2, kernel=1).score(obs)[0, 0, 0] == pytest.approx(0.2 + 200 * 0.02)
    assert Shifting(window=2, kernel=1, gamma=0).score(obs)[0, 0].tolist() == pytest.approx([0.2, 0.55, 0.25])


@pytest.mark.parametrize("group", [1, 3])
def test_shifting_is_its_formula_in_loops(group: int) -> None:
    rows, obs = padded_rows(group)
    scores = narrowed(Shifting(window=7, gamma=5.0, kernel=3), obs)
    for i, row in enumerate(rows):
        for head in range(2):
            maps = [slow_attention(q, row.keys[head].double(), SCALE)[-7:] for q in group_of(row, head)]
            found = []
            for j in range(row.length):
                columns = [[a[j] for a in window] for window in maps]
                found.append(statistics.mean(statistics.mean(c) + 5.0 * statistics.variance(c) for c in columns))
            check(scores, i, head, slow_pool(found[SINKS:-RECENT], 3, "avg"), middle=True)


@pytest.mark.parametrize("reduce", ["rms", "mean", "max"])
def test_probed_reduces_attention_over_the_probe_and_the_group(reduce: str) -> None:
    obs = observe([random_row(21, 1, group=3), random_row(15, 2, group=3)])
    scores = narrowed(built(f"probed(reduce={reduce})"), obs).tolist()
    (columns,) = AttentionFromProbe.model_validate({"reduce": reduce}).needs.columns
    assert columns.over == {"rms": "square", "mean": "sum", "max": "max"}[reduce]
    received = obs.columns[columns].tolist()
    for row, heads in enumerate(received):
        for head in range(2):
            for j in range(21):
                own = [heads[3 * head + g][j] for g in range(3)]
                whole = max(own) if reduce == "max" else sum(own)
                expected = math.sqrt(whole) if reduce == "rms" else whole
                assert scores[row][head][j] == pytest.approx(expected, rel=1e-5, abs=1e-7)
