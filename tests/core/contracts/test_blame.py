"""What parts do wrong while they run is one error that names them."""

from typing import Any

import pytest
import torch

from helpers.observations import observe, random_row
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import default_registry, register
from kvfw.core.state.observation import Needs
from kvfw.errors import BudgetError, RunError


class Exits(Part):
    needs: Needs = Needs()

    def score(self, obs: Any) -> Any:
        raise SystemExit(0)


class Lists(Part):
    needs: Needs = Needs()

    def score(self, obs: Any) -> Any:
        return [1.0]


class Unready(Part):
    @property
    def needs(self) -> Any:
        raise LookupError("not yet")

    def score(self, obs: Any) -> Any:
        raise AssertionError("never asked")


class Needless(Part):
    needs: Any = None

    def score(self, obs: Any) -> Any:
        raise AssertionError("never asked")


class Chooses(Part):
    def select(self, scores: Any, budget: Any, eligible: Any, obs: Any) -> Any:
        raise KeyError("token")


class ChoosesNothing(Part):
    def select(self, scores: Any, budget: Any, eligible: Any, obs: Any) -> Any:
        return None


class Loses(Part):
    def merge(self, state: Any, weights: Any, budget: Any) -> Any:
        raise torch.OutOfMemoryError("no room")


class Pairs(Part):
    def merge(self, state: Any, weights: Any, budget: Any) -> Any:
        return state, weights


class Turns(Part):
    def forward(self, state: Any, rope: Any) -> Any:
        raise ValueError("cannot turn")

    def inverse(self, state: Any, rope: Any) -> Any:
        return state


PARTS = {
    Kind.SCORER: (Exits, Lists),
    Kind.SELECTOR: (Chooses, ChoosesNothing),
    Kind.MERGER: (Loses, Pairs),
    Kind.SPACE: (Turns,),
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exits", r"scorer Exits in layer 0 failed: SystemExit: 0 \(test_blame.py, line \d+\)"),
        ("lists", "scorer Lists returned list where a tensor of scores is expected"),
        ("select(scorer=position,selector=chooses)", "selector Chooses in layer 0 failed: KeyError: 'token'"),
        ("select(scorer=position,selector=choosesnothing)", "selector ChoosesNothing returned NoneType where a mask"),
        ("merge(merger=loses,weight=position)", "merger Loses in layer 0 failed: OutOfMemoryError: no room"),
        ("merge(merger=pairs,weight=position)", "merger Pairs returned tuple where a KVState is expected"),
        ("merge(merger=ewmeans,space=turns,weight=position)", "space Turns in layer 0 failed: ValueError: cannot turn"),
    ],
)
def test_a_part_that_fails_is_named(text: str, message: str) -> None:
    specs = [
        PartSpec(kind, cls.__name__.lower(), f"{__name__}:{cls.__name__}", "for a test")
        for kind, classes in PARTS.items()
        for cls in classes
    ]
    registry = register((*default_registry().specs.values(), *specs))
    by = compressor(parse(text, registry), amount(ratio=4), sinks=2, recent=3)
    with pytest.raises(RunError, match=message):
        by.compress(observe([random_row(45, seed=1)]), torch.full((1, 2), 10))


def test_needs_that_cannot_be_told_are_named() -> None:
    unready: Any = Unready()
    with pytest.raises(RunError, match=r"`needs` of scorer Unready failed: LookupError: not yet \(test_blame.py, line"):
        needs_of(unready)
    needless: Any = Needless()
    with pytest.raises(RunError, match="`needs` of scorer Needless is NoneType where Needs is expected"):
        needs_of(needless)


def test_errors_that_are_meant_pass_and_interruptions_too() -> None:
    with pytest.raises(BudgetError, match="as it is"), blamed("x"):
        raise BudgetError("as it is")
    with pytest.raises(KeyboardInterrupt), blamed("x"):
        raise KeyboardInterrupt
