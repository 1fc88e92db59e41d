"""Whole evaluations on a tiny model: rows, resume, independence, and what is refused before any weights load."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from kvfw.core.contracts.parts import LayerView
from kvfw.core.contracts.records import TrialRecord
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import default_registry, register
from kvfw.errors import BudgetError, KvfwError, OptionError, PromptError, RequestError, SpecError, UnknownNameError
from kvfw.model.load.hub import HubAnswer
from kvfw.model.load.load import OpenModel
from kvfw.model.load.sources import ModelSource
from kvfw.runner.execute.evaluate import Silent
from kvfw.runner.execute.evaluate import evaluate as evaluate_and_report
from kvfw.runner.plan.config import EvalConfig
from kvfw.store.run_folder import load_run
from kvfw.tasks.niah.niah import Niah

#: Figures take seconds and are tested elsewhere.
evaluate = partial(evaluate_and_report, report=False)

HYBRID = "snapkv:0.8+ewmeans_pre:0.2"


def config(folder: Path, out: Path, **more: Any) -> EvalConfig:
    settings: dict[str, Any] = {
        "model": str(folder),
        "out": out,
        "compose": ("snapkv", "streaming", HYBRID),
        "ratio": ("4",),
        "contexts": (400,),
        "depths": (10.0, 90.0),
        "max_new_tokens": 4,
    }
    return EvalConfig.of({**settings, **more})


def records(out: Path) -> dict[str, TrialRecord]:
    return {str(record.key): record for record in load_run(out).records}


def measured(record: TrialRecord) -> Mapping[str, float | None]:
    """What must not depend on when or beside what a trial ran: everything but the clock."""
    return {name: value for name, value in record.metrics.items() if name != "tok_s"}


def test_a_run_has_the_baseline_and_every_row_and_its_files(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = evaluate_and_report(config(tiny_folder, out, ratio=("4", "8")))
    rows = [(row.compose, row.ratio, row.n) for row in done.results.rows]
    assert rows == [
        ("full", 1.0, 2),
        *((compose, ratio, 2) for ratio in (4.0, 8.0) for compose in ("snapkv", "streaming", HYBRID)),
    ]
    assert {"config.json", "trials.jsonl", "results.json", "samples.md", "report.html", "figures"} <= {
        path.name for path in out.iterdir()
    }
    saved = json.loads((out / "results.json").read_text())
    assert saved["schema"] == 2
    assert set(saved["rows"][1]["metrics"]) == {
        "recall",
        "ref_ppl",
        "delta_nll",
        "kl",
        "agreement",
        "self_ppl",
        "embed_cos",
        "hidden_cos",
        "hidden_cos_centred",
        "kv_mb",
        "kv_overhead_mb",
        "tok_s",
        "span_kept",
    }
    facts = json.loads((out / "config.json").read_text())["facts"]
    assert facts["given"]["ratio"] == ["4", "8"]
    assert facts["defaulted"]["sinks"] == 4


def test_bytes_are_those_of_the_slots_really_held(tiny_folder: Path, tmp_path: Path) -> None:
    evaluate(config(tiny_folder, tmp_path / "run"))
    slots = 4 + (400 - 88) // 4 + 84
    per_slot = 2 * 2 * 8 * 4  # keys and values, two KV heads of size 8, float32
    for record in records(tmp_path / "run").values():
        expected = (400 if record.key.compose == "full" else slots) * per_slot * 2
        assert record.metrics["kv_mb"] == pytest.approx(expected / 2**20, rel=1e-12)


def test_streaming_keeps_the_span_by_where_it_stands(tiny_folder: Path, tmp_path: Path) -> None:
    evaluate(config(tiny_folder, tmp_path / "run"))
    kept = {
        r.facets["depth"]: r.metrics["span_kept"]
        for r in records(tmp_path / "run").values()
        if r.key.compose == "streaming"
    }
    assert kept == {10.0: 0.0, 90.0: 1.0}
    assert all(r.metrics["span_kept"] == 1.0 for r in records(tmp_path / "run").values() if r.key.compose == "full")


def test_a_row_does_not_depend_on_its_neighbours_or_their_order(tiny_folder: Path, tmp_path: Path) -> None:
    # The neighbour needs other queries (window=32), so the capture differs.
    together = ("snapkv(window=32)", HYBRID, "snapkv", "streaming")
    evaluate(config(tiny_folder, tmp_path / "a", compose=together))
    evaluate(config(tiny_folder, tmp_path / "b", compose=tuple(reversed(together))))
    a, b = records(tmp_path / "a"), records(tmp_path / "b")
    assert a.keys() == b.keys()
    for compose in together:
        out = tmp_path / str(together.index(compose))
        evaluate(config(tiny_folder, out, compose=(compose,)))
        for name, alone in records(out).items():
            for other in (a[name], b[name]):
                assert measured(other) == measured(alone)
                assert other.response == alone.response


def never_load(*args: object, **kwargs: object) -> None:
    pytest.fail("weights were loaded")


class StopsAfter(Silent):
    """Interrupts like Ctrl-C after some trials."""

    def __init__(self, trials: int) -> None:
        self.left = trials

    def trial(self, record: TrialRecord) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interruption_before_the_reference_has_run_is_still_an_interruption(
    tiny_folder: Path, tmp_path: Path
) -> None:
    asked = config(tiny_folder, tmp_path / "run", reference=("streaming", "full"))
    with pytest.raises(KeyboardInterrupt):
        evaluate(asked, progress=StopsAfter(1))
    done = evaluate(asked.model_copy(update={"resume": True}))
    assert {comparison.reference.compose for comparison in done.results.comparisons} == {"streaming", "full"}


@pytest.mark.parametrize("trials", [1, 3, 4, 7])
def test_an_interrupted_run_resumes_to_the_same_results(tiny_folder: Path, tmp_path: Path, trials: int) -> None:
    whole = config(tiny_folder, tmp_path / "whole")
    evaluate(whole)
    cut = config(tiny_folder, tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        evaluate(cut, progress=StopsAfter(trials))
    assert len(records(tmp_path / "cut")) == trials
    evaluate(cut.model_copy(update={"resume": True}))
    a, b = records(tmp_path / "whole"), records(tmp_path / "cut")
    assert a.keys() == b.keys()
    assert all(measured(a[name]) == measured(b[name]) and a[name].response == b[name].response for name in a)
    assert len(load_run(tmp_path / "cut").records) == 8


def test_a_finished_run_resumes_without_loading_a_model(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tiny_folder, tmp_path / "run")
    first = evaluate(settings)
    monkeypatch.setattr("kvfw.model.load.load.OpenModel.load", never_load)
    again = evaluate(settings.model_copy(update={"resume": True}))
    assert again.results == first.results


def test_a_repaired_file_is_told_once(tiny_folder: Path, tmp_path: Path) -> None:
    asked = config(tiny_folder, tmp_path / "run", compose=("streaming",), depths=(90.0,))
    evaluate(asked)
    with (tmp_path / "run" / "trials.jsonl").open("ab") as file:
        file.write(b'null\n{"schema":2,"key":')
    notes = list[str]()

    class Noting(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    evaluate(asked.model_copy(update={"resume": True}), progress=Noting())
    assert sum("was torn by an interrupted write" in note for note in notes) == 1
    assert sum("line 3 skipped" in note for note in notes) == 1


def test_a_run_asks_the_hub_once(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(name: str) -> HubAnswer:
        asked.append(name)
        return HubAnswer(reachable=False, trouble="no route")

    def opened(name: str, **others: Any) -> OpenModel:
        return OpenModel(ModelSource(name, name, "hub"), ask=ask)

    monkeypatch.setattr("kvfw.runner.plan.prepare.open_model", opened)
    evaluate(config(tiny_folder, tmp_path / "run"))
    assert asked == [str(tiny_folder)]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"compose": ("snpkv",)}, SpecError, "Did you mean snapkv"),
        ({"compose": ("snapkv(windw=3)",)}, SpecError, "window=84"),
        ({"compose": ("snapkv:0.5+streaming:0.4",)}, SpecError, "sum to 1"),
        ({"compose": ("ewmeans_pre:0.5+snapkv:0.5",)}, SpecError, "put it last"),
        ({"ratio": ("0.5",)}, BudgetError, "must be 1 or more"),
        ({"ratio": ("four",)}, BudgetError, "'four'"),
        ({"ratio": ("1000",)}, PromptError, "at least 1088 tokens"),
        ({"ratio": (), "slots": ("88",)}, BudgetError, "at least 89 slots"),
        ({"ratio": (), "keep": ("1.5",)}, BudgetError, "at most 1"),
        ({"contexts": (80,)}, PromptError, "too short: template"),
        ({"recent": 400}, PromptError, "sample 400-10-0 has 400 tokens, which is too short"),
        ({"seeds": 0}, OptionError, "seeds is 0"),
        ({"task": "niah(seeds=2)", "seeds": 1}, OptionError, "given twice: 1 as a setting and 2 in task"),
        ({"contexts": (4000,)}, PromptError, "2048 positions"),
        ({"depths": (10.0, 101.0)}, PromptError, "101"),
        ({"haystack": Path("no/such/file.txt")}, PromptError, "no/such/file.txt"),
        ({"model": "no-such-model"}, UnknownNameError, "smollm2-135m"),
        ({"task": "niha"}, SpecError, "niah"),
        ({"dtype": "float99"}, OptionError, "float99"),
        ({"device": "abacus"}, OptionError, "abacus"),
        ({"recent": 10}, PromptError, "--recent"),
        ({"sinks": -1}, BudgetError, "sinks is -1"),
        ({"out": None, "resume": True}, OptionError, "--out"),
        ({"max_new_tokens": 9000}, PromptError, "fewer new tokens"),
        ({"reference": ("h2o",)}, OptionError, "no row of this run"),
        ({"compose": ("snapkv@nope",)}, SpecError, r"unknown allocator 'nope'(.|\n)*\n *\^"),
        ({"compose": ("snapkv@adakv(floor=2)",)}, SpecError, r"floor=2\)\n *\^"),
        ({"compose": ("position@global",)}, SpecError, r"no common unit(.|\n)*\n *\^"),
        ({"compose": ("[3-1]snapkv",)}, SpecError, r"end before they begin(.|\n)*\n *\^"),
        ({"compose": ("[0-99]snapkv",)}, SpecError, r"the model has 2 layers, 0 to 1(.|\n)*\n *\^"),
        ({"compose": ("[0]snapkv;[0-]streaming",)}, SpecError, r"layer 0 is in two policies(.|\n)*\n *\^"),
        ({"compose": ("[1]snapkv",)}, SpecError, r"layers 0 of 2 are in no policy(.|\n)*\n *\^"),
        ({"compose": ("[0]full;[1]full",)}, SpecError, "nothing is compressed"),
        ({"compose": ("kvzip(probe=no_such.txt)",)}, OptionError, "'no_such.txt' is neither 'repeat' nor a text file"),
    ],
)
def test_wrong_requests_are_refused_before_weights_load(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    error: type[KvfwError],
    words: str,
) -> None:
    monkeypatch.setattr("kvfw.model.load.load.OpenModel.load", never_load)
    out = tmp_path / "run"
    with pytest.raises(error, match=words) as caught:
        evaluate(config(tiny_folder, **{"out": out, **change}))
    assert caught.value.exit_code == 2
    assert not out.exists()


@pytest.mark.parametrize(
    "change", [{"depths": (150.0,)}, {"haystack": Path("no/such/file.txt")}, {"contexts": (400, 400)}]
)
def test_what_needs_no_tokenizer_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setenv("KVFW_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(
        "kvfw.model.load.files.ensure_embedded", lambda *args, **kwargs: pytest.fail("something was fetched")
    )
    with pytest.raises(PromptError):
        evaluate(EvalConfig(out=tmp_path / "run", **change))


def test_a_kept_span_is_not_guessed_where_keys_were_moved(tiny_folder: Path, tmp_path: Path) -> None:
    evaluate(config(tiny_folder, tmp_path / "run", compose=("streaming(positions=cache)",)))
    found = [r for r in records(tmp_path / "run").values() if r.key.compose != "full"]
    assert all(r.metrics["span_kept"] is None and "re-rotated" in r.reasons["span_kept"] for r in found)


def test_settings_say_what_the_task_does(tiny_folder: Path, tmp_path: Path) -> None:
    done = evaluate(config(tiny_folder, tmp_path / "run", task="niah(begin_answer=false)", depths=(50.0,)))
    settings = done.results.config
    assert settings["task"] == "niah(contexts=[400],depths=[50],begin_answer=false)"
    assert settings["scores"] == [info.model_dump(mode="json") for info in Niah.scores]
    assert settings.keys().isdisjoint({"contexts", "depths", "seeds", "haystack", "begin_answer"})
    assert done.results.metrics[0] == Niah.scores[0]


def test_a_short_haystack_says_how_many_tokens_it_has(tiny_folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Only a few words here. " * 5)
    with pytest.raises(PromptError, match=r"\d+ tokens"):
        evaluate(config(tiny_folder, tmp_path / "run", haystack=short))


def test_a_folder_of_another_experiment_is_refused_naming_the_setting(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    evaluate(config(tiny_folder, out, depths=(90.0,)))
    with pytest.raises(RequestError, match="resume"):
        evaluate(config(tiny_folder, out, depths=(90.0,)))
    with pytest.raises(RequestError, match="max_new_tokens"):
        evaluate(config(tiny_folder, out, depths=(90.0,), max_new_tokens=5, resume=True))


def test_presets_and_unknown_settings() -> None:
    quick = EvalConfig.of({}, "quick")
    assert (quick.contexts, quick.seeds, quick.ratio) == ((1024,), 1, ("4",))
    assert EvalConfig.of({"slots": ("300",)}, "quick").ratio == ()
    for preset in ("qick", ["quick"]):
        with pytest.raises(OptionError, match="known: quick"):
            EvalConfig.of({}, preset)  # type: ignore[arg-type]  # as a settings file may have it
    with pytest.raises(OptionError, match="unknown setting 'ratios'"):
        EvalConfig.of({"ratios": [4]})
    with pytest.raises(OptionError, match="max_new_tokens is 0"):
        EvalConfig(max_new_tokens=0)


def test_numbers_in_settings_are_exact() -> None:
    settings = EvalConfig.of({"keep": [0.1], "ratio": 4})
    assert [str(amount) for amount in settings.amounts()] == ["ratio=4", "keep=0.1"]


class Half(Part):
    """An allocator whose outcome is a threshold: it leaves half of the total unused."""

    exact: ClassVar[bool] = False

    def allocate(self, total: Tensor, layers: Sequence[LayerView]) -> list[Tensor]:
        each = total // 2 // sum(layer.kv_heads for layer in layers)
        return [each[:, None].expand(-1, layer.kv_heads).clone() for layer in layers]


def test_results_say_what_came_of_an_amount(tiny_folder: Path, tmp_path: Path) -> None:
    spec = PartSpec(Kind.ALLOCATOR, "half", f"{__name__}:Half", "half of it")
    registry = register((*default_registry().specs.values(), spec))
    policies, half = "[0]full;[1]snapkv", "snapkv@half"
    asked = config(tiny_folder, tmp_path / "run", compose=(policies, half), depths=(50.0,))
    full, layered, halved = evaluate(asked, registry=registry).results.rows
    # 312 tokens in the middle, 88 around it; the first of two layers stays whole.
    assert [row.ratio for row in (full, layered, halved)] == [1.0, 4.0, 4.0]
    assert [row.held_ratio for row in (full, layered, halved)] == [1.0, 312 / 78, 312 / 39]
    slots = [400, (400 + 88 + 78) / 2, 88 + 39]
    assert [row.slots_per_head for row in (full, layered, halved)] == slots
    assert [row.size_ratio for row in (full, layered, halved)] == pytest.approx([400 / held for held in slots])


def test_what_came_of_an_amount_is_of_the_context_where_the_question_follows_it(
    tiny_folder: Path, tmp_path: Path
) -> None:
    asked = config(tiny_folder, tmp_path / "run", compose=("snapkv",), question_aware=False)
    _, row = evaluate(asked).results.rows
    assert row.held_ratio == pytest.approx(4, rel=0.02)
