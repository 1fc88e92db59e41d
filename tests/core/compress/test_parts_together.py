"""Parts beside and inside other parts: who sees what, whose slots count, and which biases and masses stay."""

from dataclasses import replace
from typing import Annotated, ClassVar

import pytest
import torch
from pydantic import SkipValidation
from torch import Tensor

from helpers.observations import observe, random_row, slots_of
from helpers.parts import Plain, Spy, by_hand
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.compress.scores import Scores
from kvfw.core.compress.stages import Outcome, ScoreOf, Stage
from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import PartOption, StageForm
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import Rope
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState
from kvfw.errors import RunError
from kvfw.methods.mergers.ewmeans import EWMeans
from kvfw.methods.scorers.snapkv import SnapKV

SINKS, RECENT, LENGTH = 2, 3, 45
TEN = torch.tensor([[10, 10]])
MERGED = "merge(merger=ewmeans,weight=position)"


def bound(text: str, *stages: Stage) -> Compressor:
    composition = by_hand(*stages) if stages else parse(text)
    return compressor(composition, amount(ratio=4), sinks=SINKS, recent=RECENT)


def observed(window: int = 20) -> Observation:
    return observe([random_row(LENGTH, 3)], sinks=SINKS, recent=RECENT, window=window)


# --- scorers that hold scorers ---------------------------------------------------------------------------


class Pair(Plain):
    """The sum of two scorers' scores."""

    a: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=2)")]
    b: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=20)")]

    @property
    def needs(self) -> Needs:
        return self.a.needs | self.b.needs

    def score(self, obs: Observation) -> Tensor:
        return obs.score(self.a) + obs.score(self.b)


class Secretive(Pair):
    """Does not declare what it asks for."""

    @property
    def needs(self) -> Needs:
        return Needs()


class Counted(Spy):
    """Counts how often it is asked."""

    asked: ClassVar[list[int]] = []

    def score(self, obs: Observation) -> Tensor:
        self.asked.append(obs.layer)
        return super().score(obs)


class WrongShape(Plain):
    """Forgets the heads."""

    def score(self, obs: Observation) -> Tensor:
        return obs.state.mass[:, 0]


@pytest.mark.parametrize("within", [True, False], ids=["compressing", "asked directly"])
def test_a_held_scorer_sees_its_own_window(within: bool) -> None:
    obs, two, twenty = observed(), SnapKV(window=2), SnapKV(window=20)
    expected = two.score(obs.narrowed(two.needs)) + twenty.score(obs.narrowed(twenty.needs))
    pair = Pair(a=two, b=twenty)
    scores = Scores(obs).of(pair) if within else pair.score(obs)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0)


def test_a_scorer_that_several_hold_is_asked_once() -> None:
    Counted.asked.clear()
    scores, inner = Scores(observed()), Counted(queries=4)
    scores.of(Pair(a=inner, b=Spy(queries=2)))
    scores.of(Pair(a=Spy(queries=3), b=inner))
    scores.of(inner)
    assert Counted.asked == [0]


def test_a_held_scorer_is_checked_and_named() -> None:
    with pytest.raises(RunError, match=r"^scorer WrongShape returned shape \(1, 45\)"):
        Scores(observed()).of(Pair(a=WrongShape(), b=Spy()))


def test_what_a_held_scorer_needs_must_be_declared() -> None:
    with pytest.raises(RunError, match="asked for the scores of SnapKV without declaring"):
        Scores(observed()).of(Secretive(a=SnapKV(window=2), b=SnapKV(window=20)))


# --- stages ----------------------------------------------------------------------------------------------


class Pairs(StageForm):
    """Merges the first ``2 budget`` eligible tokens of each head in pairs."""

    kept_too: int = 0
    everything: bool = False
    factor: float = 1.0

    @property
    def moves_positions(self) -> bool:
        return False

    @property
    def needs(self) -> Needs:
        return Needs(queries=1)

    def run(self, obs: Observation, score_of: ScoreOf, budget: Tensor, eligible: Tensor) -> Outcome:
        assert obs.queries is not None
        assert obs.queries.shape[2] == 1
        assert not obs.column_sums
        assert obs.lexical is None
        first = eligible & (eligible.cumsum(-1) <= 2 * budget[..., None])
        old = take(obs.state, first)
        mass = (old.mass[..., ::2] + old.mass[..., 1::2]) * self.factor
        halves = [(x[:, :, ::2] + x[:, :, 1::2]) / 2 for x in (old.keys, old.values, old.positions, old.bias)]
        keys, values, positions, bias = halves
        extra = eligible & ~first & (eligible.cumsum(-1) <= 2 * budget[..., None] + self.kept_too)
        taken = None if self.everything else first
        return Outcome(extra, KVState(keys, values, positions, mass, bias), taken)

    def finish(self, state: KVState, rope: Rope | None, active: Tensor) -> KVState:
        return state


def test_a_stage_in_a_hybrid_sees_what_it_needs_and_no_more() -> None:
    state = bound("snapkv(window=8):0.5+uniform:0.5", *bound("snapkv(window=8)").stages, Pairs()).compress(
        observed(), TEN
    )
    assert state.valid.sum(-1).tolist() == [[SINKS + RECENT + 10] * 2]


def test_slots_and_masses_of_two_merging_stages_add_up() -> None:
    hybrid = bound("uniform:0.4+streaming:0.3+position:0.3", Pairs(), Pairs(), *bound(MERGED).stages)
    state, sums = hybrid.compress_with_sums(observed(), TEN)
    assert state.valid.sum(-1).tolist() == [[SINKS + RECENT + 10] * 2]
    assert state.mass.sum(-1).tolist() == [[LENGTH] * 2]
    assert [slot.mass for slot in slots_of(state, 0, 0)].count(2.0) >= 7
    torch.testing.assert_close(sums[0].sum(-1), observed().column_sums[0].sum(-1))


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (
            Pairs(kept_too=1),
            r"stage Pairs kept \[\[1, 1\]\] tokens and made \[\[5, 5\]\] new slots in layer 0 where .*\[\[5, 5\]\]",
        ),
        (
            Pairs(everything=True),
            r"stage Pairs returned slots that stand for \[\[10.0, 10.0\]\] .* given \[\[40.0, 40.0\]\]",
        ),
        (Pairs(factor=1.01), r"stand for \[\[10.1.*, 10.1.*\]\] tokens where it was given \[\[10.0, 10.0\]\]"),
    ],
)
def test_a_stage_that_miscounts_is_named(stage: Stage, says: str) -> None:
    with pytest.raises(RunError, match=says):
        bound("uniform:0.5+position:0.5", stage, *bound("position").stages).compress(observed(), TEN)


def test_a_stage_that_leaves_nothing_for_the_next_is_refused() -> None:
    class Rest(Pairs):
        """Merges all there is, and does not say that it does."""

        def run(self, obs: Observation, score_of: ScoreOf, budget: Tensor, eligible: Tensor) -> Outcome:
            return replace(bound(MERGED).stages[0].run(obs, lambda scorer: obs.state.mass, budget, eligible))

    with pytest.raises(RunError, match=r"stage Select has \[\[5, 5\]\] slots to fill .* left \[\[0, 0\]\] tokens"):
        bound("uniform:0.5+position:0.5", Rest(), *bound("position").stages).compress(observed(), TEN)


# --- masses and biases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "loses"), [(1 + 2e-5, False), (1 - 2e-5, False), (0.5, True)])
def test_masses_may_be_divided_and_lost_by_rule(factor: float, loses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = EWMeans.merge
    monkeypatch.setattr(EWMeans, "loses_mass", loses)
    monkeypatch.setattr(EWMeans, "merge", lambda *given: replace(out := merge(*given), mass=out.mass * factor))
    assert bound(MERGED).compress(observed(), TEN).valid.sum(-1).tolist() == [[SINKS + RECENT + 10] * 2]


@pytest.mark.parametrize(("factor", "loses"), [(1.001, False), (0.999, False), (1.001, True)])
def test_masses_that_do_not_add_up_are_refused_with_both_numbers(
    factor: float, loses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = EWMeans.merge
    monkeypatch.setattr(EWMeans, "loses_mass", loses)
    monkeypatch.setattr(EWMeans, "merge", lambda *given: replace(out := merge(*given), mass=out.mass * factor))
    with pytest.raises(
        RunError, match=rf"stand for \[\[{int(400 * factor) / 10}.* where it was given \[\[40.0, 40.0\]\]"
    ):
        bound(MERGED).compress(observed(), TEN)


def fitted() -> Observation:
    """A cache that was compressed before, whose slots of any mass have biases."""
    once = bound(f"position:0.5+{MERGED}:0.5").compress(observed(), torch.tensor([[30, 30]]))
    noise = torch.randn(once.bias.shape, generator=torch.Generator().manual_seed(2))
    state = replace(once, bias=once.bias + noise)
    rank = torch.arange(state.width)
    return replace(
        observed().narrowed(Needs()),
        narrowed_to=None,
        state=state,
        protected=((rank < SINKS) | (rank >= state.width - RECENT)).expand_as(state.valid),
    )


@pytest.mark.parametrize(
    "text",
    ["position", "streaming(positions=cache)", MERGED, "merge(merger=ewmeans,space=pre,weight=position,bias=log)"],
)
def test_a_slot_that_stays_keeps_its_bias(text: str) -> None:
    obs = fitted()
    for budget in (8, 29):
        state = bound(text).compress(obs, torch.full((1, 2), budget))
        before = {slot.value: slot.bias for slot in slots_of(obs.state, 0, 0)}
        stays = [slot for slot in slots_of(state, 0, 0) if slot.value in before]
        assert len(stays) >= SINKS + RECENT
        assert all(slot.bias == before[slot.value] for slot in stays)


def test_new_slots_get_the_mean_of_what_biases_multiply_by_or_log_mass() -> None:
    obs = fitted()
    same = replace(obs, state=replace(obs.state, bias=torch.where(obs.state.valid, 0.7, -torch.inf)))
    state = bound(MERGED).compress(same, torch.full((1, 2), 8))
    torch.testing.assert_close(state.bias[state.valid], torch.full_like(state.bias[state.valid], 0.7))
    log = bound(MERGED[:-1] + ",bias=log)").compress(same, torch.full((1, 2), 8))
    new = (log.bias - 0.7).abs() > 1e-6
    assert bool(new.any())
    torch.testing.assert_close(log.bias[new & log.valid], log.mass[new & log.valid].log())


def test_merging_equal_slots_of_equal_bias_is_dropping_all_but_one() -> None:
    obs = fitted()
    alike = replace(
        obs.state,
        keys=torch.ones_like(obs.state.keys),
        values=torch.ones_like(obs.state.values),
        bias=torch.full_like(obs.state.bias, -0.5),
    )
    merged = bound(MERGED).compress(replace(obs, state=alike), torch.ones(1, 2, dtype=torch.int64))
    torch.testing.assert_close(merged.bias, torch.full_like(merged.bias, -0.5))
