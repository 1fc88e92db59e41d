"""Several questions about one context, texts to follow, and responses that were cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.turns_task import FOLLOWED, Turns
from kvfw.core.contracts.records import TrialRecord
from kvfw.core.contracts.task import Sample, Turn
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry, register
from kvfw.errors import RequestError, RunError
from kvfw.model.run import prefill
from kvfw.runner.execute import trial
from kvfw.runner.execute.evaluate import Silent, evaluate
from kvfw.runner.plan.config import EvalConfig
from kvfw.store.run_folder import load_run

AGNOSTIC: dict[str, Any] = {"question_aware": False}


@pytest.fixture(scope="module")
def registry() -> Registry:
    own = [spec for spec in default_registry().specs.values() if spec.name != "embed_cos"]
    tasks = [
        PartSpec(Kind.TASK, name.lower(), f"helpers.turns_task:{name}", "x") for name in ("Turns", "Single", "Wrong")
    ]
    return register((*own, *tasks))


class Noted(Silent):
    """Keeps the notes, and interrupts after some trials."""

    def __init__(self, trials: int = 0) -> None:
        self.notes, self.total, self.left = list[str](), 0, trials

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, folder: Path, total: int, done: int) -> None:
        self.total = total

    def trial(self, record: TrialRecord) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def ran(folder: Path, out: Path, registry: Registry, tell: Noted | None = None, **more: Any) -> dict[str, TrialRecord]:
    compose = ("snapkv(window=8)", "streaming")
    settings = {"model": str(folder), "out": out, "task": "turns", "compose": compose, **more}
    evaluate(EvalConfig.of(settings), progress=tell, registry=registry, report=False)
    return {f"{r.key.compose} {r.key.sample} {r.key.turn}": r for r in load_run(out).records}


def comparable(record: TrialRecord) -> dict[str, object]:
    """What must not depend on how a run was cut into prefills: everything but names and the clock."""
    data = record.model_dump(exclude={"seconds", "key"})
    return {**data, "metrics": {name: v for name, v in record.metrics.items() if name != "tok_s"}, "reasons": None}


@pytest.mark.parametrize("mode", [{}, AGNOSTIC], ids=["aware", "agnostic"])
def test_every_row_answers_every_question(
    tiny_folder: Path, tmp_path: Path, registry: Registry, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills = list[int]()
    original = prefill.prefill

    def counted(model: Any, ids: Any, *arguments: Any, **named: Any) -> Any:
        prefills.append(len(ids))
        return original(model, ids, *arguments, **named)

    monkeypatch.setattr(trial, "prefill", counted)
    tell = Noted()
    found = ran(tiny_folder, tmp_path / "run", registry, tell, **mode)
    assert tell.total == len(found) == 3 * 2 * 3
    # Question-agnostic, one prefill of a context serves all questions about it.
    assert len(prefills) == (2 if mode else 6)
    assert all(tokens == 300 for tokens in prefills) == bool(mode)
    # Each response is as long as its turn allows, and knows nothing of the other turns.
    single = ran(tiny_folder, tmp_path / "single", registry, task="single", **mode)
    for name, record in found.items():
        compose, sample, turn = name.split()
        alone = single[f"{compose} {sample}-{turn} 0"]
        assert comparable(record) == comparable(alone)
        assert record.extra["response_tokens"] <= (3, 4, 99)[int(turn)]
    assert list(found["full ship 1"].metrics)[:2] == ["words", "silent"]
    assert found["full ship 1"].facets == {"animal": "ship"}


def test_speed_is_measured_in_the_first_turn_of_a_stratums_first_sample(
    tiny_folder: Path, tmp_path: Path, registry: Registry
) -> None:
    found = ran(tiny_folder, tmp_path / "run", registry, **AGNOSTIC)
    timed = {name for name, record in found.items() if record.metrics["tok_s"] is not None}
    assert timed == {f"{compose} whale 0" for compose in ("full", "snapkv(window=8)", "streaming")}
    assert found["full ship 0"].reasons["tok_s"] == "timed in the first sample of each stratum only"


@pytest.mark.parametrize("mode", [{}, AGNOSTIC], ids=["aware", "agnostic"])
def test_a_text_to_follow_is_every_rows_response(
    tiny_folder: Path, tmp_path: Path, registry: Registry, mode: dict[str, Any]
) -> None:
    found = ran(tiny_folder, tmp_path / "run", registry, **mode, max_new_tokens=1)
    followed = [record for name, record in found.items() if name.endswith(" 2")]
    assert {record.response for record in followed} == {FOLLOWED}
    assert all(record.extra["response_cut"] == 0.0 for record in followed)
    perplexities = {record.key.compose: record.metrics["ref_ppl"] for record in followed if record.key.sample == "ship"}
    assert len(set(perplexities.values())) == 3
    assert None not in perplexities.values()
    # The others' one token comes from the prompt alone: it was cut.
    assert all(r.extra["response_tokens"] == 1.0 for name, r in found.items() if not name.endswith(" 2"))


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> dict[str, TrialRecord]:
    return ran(tiny_folder, tmp_path_factory.mktemp("whole") / "run", registry, **AGNOSTIC)


@pytest.mark.parametrize("trials", [1, 5, 8, 13])
def test_a_run_interrupted_between_questions_resumes_to_the_same_records(
    tiny_folder: Path, tmp_path: Path, registry: Registry, whole: dict[str, TrialRecord], trials: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(tiny_folder, tmp_path / "cut", registry, Noted(trials), **AGNOSTIC)
    assert len(load_run(tmp_path / "cut").records) == trials
    cut = ran(tiny_folder, tmp_path / "cut", registry, resume=True, **AGNOSTIC)
    assert {name: comparable(r) for name, r in cut.items()} == {name: comparable(r) for name, r in whole.items()}


def _shorter_context(sample: Sample) -> Sample:
    """The same whole prompts, of which one more token belongs to the questions."""
    last = sample.context_ids[-1:]
    turns = tuple(replace(turn, question_ids=last + turn.question_ids) for turn in sample.turns)
    return replace(sample, context_ids=sample.context_ids[:-1], turns=turns)


def _of_turns(change: Callable[[Turn], Turn]) -> Callable[[Sample], Sample]:
    return lambda sample: replace(sample, turns=tuple(map(change, sample.turns)))


@pytest.mark.parametrize("mode", [{}, AGNOSTIC], ids=["aware", "agnostic"])
def test_a_run_whose_questions_changed_is_not_resumed(
    tiny_folder: Path, tmp_path: Path, registry: Registry, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, samples = tmp_path / "run", Turns.samples
    with pytest.raises(KeyboardInterrupt):
        ran(tiny_folder, out, registry, Noted(1), **mode)
    trials = (out / "trials.jsonl").read_bytes()
    changes: tuple[Callable[[Sample], Sample], ...] = (
        _shorter_context,
        _of_turns(lambda turn: replace(turn, references=("land",))),
        _of_turns(lambda turn: replace(turn, max_new_tokens=turn.max_new_tokens + 1)),
        _of_turns(lambda turn: replace(turn, follow_ids=turn.follow_ids[:-1])),
    )
    for change in changes:
        monkeypatch.setattr(Turns, "samples", lambda *given, change=change: map(change, samples(*given)))
        with pytest.raises(RequestError, match=r"prompts_sha256.*\n.*references and response limits.*kvfw report"):
            ran(tiny_folder, out, registry, resume=True, **mode)
    assert (out / "trials.jsonl").read_bytes() == trials
    monkeypatch.setattr(Turns, "samples", samples)
    assert len(ran(tiny_folder, out, registry, resume=True, **mode)) == 18


def test_responses_cut_before_their_references_are_told(tiny_folder: Path, tmp_path: Path, registry: Registry) -> None:
    tell = Noted()
    found = ran(tiny_folder, tmp_path / "run", registry, tell, max_new_tokens=2)
    assert {found[f"full ship {turn}"].extra["response_cut"] for turn in (0, 1)} == {1.0}
    (line,) = [note for note in tell.notes if "cut" in note]
    assert line.startswith("4 of 6 responses of the full cache were cut after 2 tokens, without what was asked for")
    assert "--max-new-tokens" in line


def test_a_task_that_leaves_a_score_out_is_named(tiny_folder: Path, tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(RunError, match=r"task Wrong scored a response .*'words'.* for each of words, silent"):
        ran(tiny_folder, tmp_path / "run", registry, task="wrong")
