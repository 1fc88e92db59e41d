"""A selector sees the slots, and of what was observed what it declares itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.observations import observe, random_row
from kvfw.core.compress.stages import Select
from kvfw.core.contracts.blame import needs_of
from kvfw.core.ops.topk import highest
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation
from kvfw.errors import RunError
from kvfw.methods.scorers.h2o import H2O
from kvfw.methods.scorers.snapkv import SnapKV
from kvfw.methods.selectors.topk import TopK

SEEN: list[Observation] = []


class Looks(Part):
    """Remembers what it was shown."""

    queries: int = 3

    @property
    def needs(self) -> Needs:
        return Needs(queries=self.queries)

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        SEEN.append(obs)
        return highest(scores, budget, eligible)


class AsksForMore(Part):
    """Looks at what its scorer declared."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return highest(obs.received(0), budget, eligible)


class Vague(Part):
    """Declares something else."""

    @property
    def needs(self) -> Any:
        return {"queries": 3}

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible


def run(stage: Select) -> None:
    obs = observe([random_row(20, 1)], window=8).narrowed(stage.needs)
    stage.run(obs, obs.score, torch.tensor([[4, 2]]), obs.middle)


def test_it_sees_its_own_needs_and_not_the_scorers() -> None:
    SEEN.clear()
    stage = Select(scorer=SnapKV(window=8), selector=Looks())
    assert stage.needs == Needs(queries=8)
    run(stage)
    run(Select(scorer=H2O(), selector=Looks(queries=0)))
    assert SEEN[0].window()[0].shape[2] == 3
    assert SEEN[0].state.width == 20
    assert SEEN[1].queries is None
    assert not SEEN[1].column_sums


def test_a_stage_needs_what_its_selector_needs() -> None:
    stage = Select(scorer=H2O(), selector=Looks(queries=5))
    assert stage.needs == Needs(queries=5, column_sums=frozenset({0}))


def test_a_selector_that_declares_nothing_needs_nothing() -> None:
    assert needs_of(TopK(), "selector") == Needs()
    with pytest.raises(RunError, match=r"without declaring Needs\(column_sums"):
        run(Select(scorer=H2O(), selector=AsksForMore()))


def test_needs_of_another_type_are_named() -> None:
    vague: Any = Vague()
    with pytest.raises(RunError, match="`needs` of selector Vague is dict where Needs is expected"):
        _ = Select(scorer=H2O(), selector=vague).needs
