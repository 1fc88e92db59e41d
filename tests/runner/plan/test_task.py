"""The task of a run: options from settings, and samples that are not what the contract asks for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers import sound_parts as sound
from kvfw.core.contracts.metric import Metric
from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, register
from kvfw.errors import OptionError, RunError, UnsupportedError
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.task import built_task, check_scores, checked_samples, sample_fault
from kvfw.tasks import kvfw_parts
from kvfw.tasks.niah.niah import Niah
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


class Bare(Part):
    """A task without any option."""

    scores: ClassVar[tuple[MetricInfo, ...]] = (MetricInfo(name="right", title="Right", primary=True),)

    def check(self) -> None:
        return None

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        raise ValueError("no samples today")

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"right": 1.0}


REGISTRY = register((*kvfw_parts(), PartSpec(Kind.TASK, "bare", f"{__name__}:Bare", "for a test")))


def built(preset: str | None = None, registry: Registry = REGISTRY, **settings: Any) -> tuple[object, str]:
    return built_task(EvalConfig.of(settings, preset), registry)


def test_settings_are_shorthand_for_the_tasks_options() -> None:
    assert built() == (Niah(), "niah")
    task, text = built(contexts=(512, 1024), depths=(50,), seeds=2, haystack=Path("a.txt"), begin_answer=False)
    assert task == Niah(contexts=(512, 1024), depths=(50.0,), seeds=2, haystack=Path("a.txt"), begin_answer=False)
    assert text == "niah(contexts=[512,1024],depths=[50],seeds=2,haystack=a.txt,begin_answer=false)"
    # What is a default anyway is not in the text, however it was given.
    assert built(contexts=(1024,), begin_answer=True)[1] == "niah"


def test_presets_set_options_of_the_task_and_yield_to_its_text() -> None:
    assert built("founding")[1] == "niah(contexts=[1024,2048,3072],seeds=3)"
    assert built("founding", task="niah(seeds=2)")[1] == "niah(contexts=[1024,2048,3072],seeds=2)"
    assert built("founding", seeds=1)[1] == "niah(contexts=[1024,2048,3072])"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "bare", "contexts": (512,)}, r"contexts is \[512\], but task 'bare' has no option 'contexts'"),
        ({"task": "bare", "begin_answer": True}, "begin_answer is true, but task 'bare' has no option"),
        ({"task": "niah(seeds=2)", "seeds": 3}, "seeds is given twice: 3 as a setting and 2 in task"),
        ({"task": "niah(begin_answer=false)", "begin_answer": True}, "begin_answer is given twice: true"),
        ({"seeds": 0}, "seeds is 0: Input should be greater than or equal to 1 .task 'niah'"),
        ({"seeds": 2000}, "seeds is 2000"),
        ({"depths": (float("nan"),)}, "depths.0 is nan"),
    ],
)
def test_a_setting_that_does_not_suit_the_task_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        built(**settings)


@pytest.mark.parametrize("preset", [None, "quick", "founding"])
def test_a_preset_does_not_hide_a_contradiction(preset: str | None) -> None:
    # (1024,) is what the preset quick has, too.
    words = (
        r"contexts is given twice: \[1024\] as a setting and \[2048\] in task 'niah\(contexts=\[2048\]\)'; leave one"
    )
    with pytest.raises(OptionError, match=words):
        built(preset, task="niah(contexts=[2048])", contexts=(1024,))
    with pytest.raises(OptionError, match=r"^contexts is \[1024\], but task 'bare' has no option"):
        built(preset, task="bare", contexts=(1024,))


def test_an_option_given_twice_with_one_value_is_fine() -> None:
    assert built(task="niah(seeds=2)", seeds=2)[1] == "niah(seeds=2)"


def test_a_preset_for_a_task_without_its_options_is_refused() -> None:
    with pytest.raises(OptionError, match="preset 'quick' sets contexts, but task 'bare' has no option 'contexts'"):
        built("quick", task="bare")


def test_what_is_no_task_is_refused() -> None:
    registry = register((PartSpec(Kind.TASK, "norm", "helpers.sound_parts:Norm", "for a test"),))
    with pytest.raises(UnsupportedError, match="has no `scores`, `check`, `samples` and `score`"):
        built(task="norm", registry=registry)


def test_scores_need_names_of_their_own_and_one_primary() -> None:
    metric: Metric = sound.Words()
    check_scores(Bare(), [metric], "bare")

    class Clashing(Bare):
        scores: ClassVar[tuple[MetricInfo, ...]] = (MetricInfo(name="words", title="W", primary=True),)

    with pytest.raises(UnsupportedError, match="task 'mine': the name of score 'words' is taken"):
        check_scores(Clashing(), [metric], "mine")

    class Judged(Bare):
        scores: ClassVar[tuple[MetricInfo, ...]] = (sound.Words.info.model_copy(update={"primary": True}),)

    check_scores(Judged(), [metric], "mine")
    unranked, _ = built(task="Unranked", registry=unranked_registry())
    assert isinstance(unranked, sound.Sum)
    with pytest.raises(UnsupportedError, match=r"must mark one of its scores \(right\) as primary"):
        check_scores(unranked, [metric], "mine")


def unranked_registry() -> Registry:
    return register((PartSpec(Kind.TASK, "Unranked", "helpers.broken_tasks:Unranked", "for a test"),))


GOOD = Sample("a", "g/0", {"length": 9}, (1, 2, 3), (Turn((4,), references=("x",)),), (range(1, 3),))
TURN = GOOD.turns[0]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ((), "made no samples"),
        ((GOOD, replace(GOOD, facets={"length": 8})), "two samples called 'a'"),
        ((replace(GOOD, id=""),), "both need a name"),
        ((replace(GOOD, group=""),), "both need a name"),
        ((GOOD, replace(GOOD, id="b", facets={"size": 9})), r"with the facets \['size'\] after 'a'"),
        ((replace(GOOD, facets={"length": True}),), "whose facet 'length' is True"),
        ((replace(GOOD, facets={"length": float("nan")}),), "whose facet 'length' is nan"),
        (
            (GOOD, replace(GOOD, id="b", facets={"length": "9"})),
            "whose facet 'length' is '9' after 9; all must be numbers",
        ),
        ((replace(GOOD, facets={"length": "9"}), replace(GOOD, id="b")), "whose facet 'length' is 9 after '9'"),
        ((replace(GOOD, context_ids=()),), "without a context"),
        ((replace(GOOD, turns=()),), "without a turn"),
        ((replace(GOOD, spans=(range(2, 4),)),), "of 3 context tokens with a span at range"),
        ((replace(GOOD, spans=(range(1, 1),)),), "with a span at"),
        ((replace(GOOD, spans=(range(-1, 2),)),), "with a span at"),
        ((replace(GOOD, turns=(TURN, Turn(()))),), "whose turn 2 has nothing to ask"),
        ((replace(GOOD, turns=(replace(TURN, max_new_tokens=0),)),), "whose turn 1 has max_new_tokens=0"),
        ((replace(GOOD, context_ids=(1, True, 3)),), "tokens that are not whole numbers"),
        ((replace(GOOD, turns=(replace(TURN, follow_ids=(-1,)),)),), "tokens that are not whole numbers"),
    ],
)
def test_a_sample_that_is_not_what_the_contract_asks_for_is_named(samples: tuple[Sample, ...], words: str) -> None:
    class Made(Bare):
        def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
            yield from samples

    with pytest.raises(RunError, match=f"task 'mine' made .*{words.removeprefix('made ')}"):
        checked_samples(Made(), SuiteTokenizer(), "mine")


def test_a_sample_may_only_follow_a_text() -> None:
    assert sample_fault([GOOD, replace(GOOD, id="b", turns=(Turn((), follow_ids=(5, 6)),))]) == ""


def test_a_facet_may_be_a_whole_number_here_and_a_fraction_there() -> None:
    assert sample_fault([GOOD, replace(GOOD, id="b", facets={"length": 9.5})]) == ""


def test_a_task_that_raises_is_named() -> None:
    with pytest.raises(RunError, match=r"task 'bare' failed: ValueError: no samples today \(test_task.py, line"):
        checked_samples(Bare(), SuiteTokenizer(), "bare")
