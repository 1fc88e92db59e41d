"""The engine: what a part raises is a finding, and the others go on. What a run leaves behind is nothing."""

import random
from typing import Annotated

import pytest
import torch
from pydantic import SkipValidation
from torch import Tensor

from helpers import sound_parts as sound
from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import PartOption
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, register
from kvfw.core.state.observation import Needs, Observation
from kvfw.errors import SpecError, UnknownNameError
from kvfw.methods import kvfw_parts
from kvfw.verify.findings.verdict import Failed, NotApplicable
from kvfw.verify.parts import verify_part
from kvfw.verify.report import VerifyReport
from kvfw.verify.suite import PROPERTIES, Finding


class Raising(sound.Norm):
    """Raises in its own file, three lines below this one."""

    def score(self, obs: Observation) -> Tensor:
        raise ZeroDivisionError("no scores today")


class Leaving(sound.Norm):
    """Ends the process."""

    def score(self, obs: Observation) -> Tensor:
        raise SystemExit(3)


class Twofold(sound.Norm):
    """Fails at two lines."""

    def score(self, obs: Observation) -> Tensor:
        if obs.state.width < 10:
            raise ValueError("too short")
        raise ValueError("too long")


class Farsighted(sound.Norm):
    """Asks for more queries than most prompts have."""

    @property
    def needs(self) -> Needs:
        return Needs(queries=100_000)

    def score(self, obs: Observation) -> Tensor:
        return super().score(obs) + obs.window()[0].float().square().mean((1, 2, 3))[:, None, None]


class Demanding(sound.Norm):
    """Cannot be without an option."""

    steps: int


class Around(sound.Norm):
    """Holds another scorer, which it has to be given."""

    inner: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER)]


def _spec(kind: Kind, name: str, target: str) -> PartSpec:
    return PartSpec(kind, name, f"{__name__}:{target}", "for a test", provider="stranger")


REGISTRY = register(
    (
        *kvfw_parts(),
        _spec(Kind.SCORER, "raising", "Raising"),
        _spec(Kind.SCORER, "leaving", "Leaving"),
        _spec(Kind.SCORER, "twofold", "Twofold"),
        _spec(Kind.SCORER, "farsighted", "Farsighted"),
        _spec(Kind.SCORER, "demanding", "Demanding"),
        _spec(Kind.SCORER, "around", "Around"),
        PartSpec(Kind.METHOD, "recipeless", "helpers.parts:BrokenRecipe", "for a test", provider="stranger"),
        PartSpec(Kind.METRIC, "snapkv", "helpers.sound_parts:Words", "for a test", provider="stranger"),
    )
)


def report_of(text: str, registry: Registry = REGISTRY, kind: Kind | None = None) -> VerifyReport:
    return verify_part(text, registry=registry, kind=kind, without={"cost"})


def by_id(report: VerifyReport) -> dict[str, Finding]:
    (part,) = report.parts
    return {finding.property.id: finding for finding in part.findings}


@pytest.mark.parametrize(
    ("name", "seen"), [("raising", "ZeroDivisionError: no scores today"), ("leaving", "SystemExit: 3")]
)
def test_what_a_part_raises_is_a_finding_with_its_line(name: str, seen: str) -> None:
    found = by_id(report_of(name))
    line = {cls.__name__.lower(): cls.score.__code__.co_firstlineno + 1 for cls in (Raising, Leaving)}[name]
    verdict = found["score-shape"].verdict
    assert verdict == Failed("no exception", f"{seen} (test_suite.py, line {line})")
    # It is told once.
    assert [finding.verdict for finding in found.values() if isinstance(finding.verdict, Failed)] == [verdict]
    assert found["exact-budget"].verdict == NotApplicable("the same exception as in score-shape, at the same line")
    # What does not call the scorer still holds.
    assert not isinstance(found["docs"].verdict, Failed)
    assert not isinstance(found["attach-ratio-1"].verdict, Failed)
    assert {*found} == {prop.id for prop in PROPERTIES if Kind.SCORER in prop.kinds} - {"cost"}


def test_two_faults_are_both_told() -> None:
    failed = [key for key, finding in by_id(report_of("twofold")).items() if isinstance(finding.verdict, Failed)]
    assert failed == ["score-shape", "score-short"]


def test_a_very_large_window_is_verified_in_prompts_of_ordinary_length() -> None:
    report = verify_part("farsighted", registry=REGISTRY, only={"no-square", "exact-budget"})
    assert report.passed, str(report)
    assert "shown 1024 of the 100000 queries it asks for" in " ".join(str(report).split())


def test_progress_is_told_before_every_property() -> None:
    told = list[tuple[str, int, int]]()
    verify_part("topk", only={"docs"}, progress=lambda *step: told.append(step))
    assert told == [("topk: loads", 1, 2), ("topk: docs", 2, 2)]


def test_a_method_whose_recipe_does_not_work_cannot_be_built() -> None:
    found = by_id(report_of("recipeless"))
    loads = found.pop("loads").verdict
    assert isinstance(loads, Failed)
    assert "the recipe of method 'recipeless' (stranger) does not work" in loads.seen
    assert {finding.verdict for finding in found.values()} == {NotApplicable("the part could not be built")}


def test_a_required_option_is_asked_for() -> None:
    with pytest.raises(SpecError, match="demanding needs option 'steps'"):
        report_of("demanding")
    assert report_of("demanding(steps=2)").passed


def test_a_required_part_gets_a_stand_in() -> None:
    report = report_of("around(scale=2)")
    assert report.passed, str(report)
    assert report.parts[0].text == "around(scale=2,inner=snapkv(window=8))"
    assert report_of("around(inner=h2o)").parts[0].text == "around(inner=h2o)"


def test_a_name_may_stand_for_parts_of_several_kinds() -> None:
    report = report_of("snapkv")
    assert [part.spec.kind for part in report.parts] == [Kind.SCORER, Kind.METRIC]
    assert [part.passed for part in report.parts] == [True, False]  # the metric calls itself "words"
    assert not report.passed
    assert report_of("snapkv", kind=Kind.SCORER).passed


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean raising"):
        report_of("raisin")


def test_the_process_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    random.seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    state = random.getstate()
    report_of("ewmeans")
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == state
    assert torch.get_num_threads() == threads
