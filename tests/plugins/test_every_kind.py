"""A plugin can bring a part of every kind, and all of them work from the request to the files of a run."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from helpers import stranger
from kvfw import EvalConfig, Kind, Registry, evaluate
from kvfw.core.parts.spec import PartSpec
from kvfw.core.registry.hooks import GROUP
from kvfw.core.registry.registry import collect, register
from kvfw.errors import RequestError, RunError, UnknownNameError
from kvfw.model.load.load import OpenModel, open_model
from kvfw.runner.execute.provenance import changed_versions
from kvfw.runner.plan.metrics import metric_problems, registered_metrics

MODEL = "x-model.1"
COMPOSE = (
    "x_scorer",
    "x_scorer@x_allocator|x_refiner",
    "x_scorer@x_allocator|x_refiner|x_codec",
    "full|x_codec",
    "x_stage:0.5+x_method:0.5",
    "select(scorer=x_scorer(period=5),selector=x_selector):0.25+merge(merger=x_merger,space=x_space):0.75",
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect([EntryPoint("stranger", "helpers.stranger", GROUP)], {})


def test_there_is_one_of_every_kind(registry: Registry) -> None:
    assert registry.problems == ()
    kinds = [spec.kind for spec in registry.specs.values() if spec.provider == "stranger"]
    assert set(kinds) == set(Kind)


def test_all_of_them_work_in_a_run(
    registry: Registry, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stranger.FOLDER, str(tiny_folder))
    config = EvalConfig(
        compose=COMPOSE,
        model=MODEL,
        task="x_task(word=ship)",
        contexts=(200,),
        depths=(50.0,),
        max_new_tokens=3,
        out=tmp_path / "run",
        recent=40,
    )
    done = evaluate(config, registry=registry)
    assert [row.compose for row in done.results.rows] == ["full", *COMPOSE]
    names = [info.name for info in done.results.metrics]
    assert names[-2:] == ["x_metric", "x_derived"]
    for row in done.results.rows:
        assert row.metrics["x_metric"].mean is not None
        assert row.metrics["x_metric"].mean >= 1
    stored = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert stored["settings"]["model"] == MODEL
    assert stored["settings"]["task"] == "x_task(contexts=[200],word=ship)"
    assert stored["facts"]["plugins"]["stranger"] == {"distribution": None, "version": None}
    sizes = {row.compose: row.size_ratio for row in done.results.rows}
    # The codec halves whatever is held, to the few free slots behind it.
    assert sizes["full|x_codec"] == pytest.approx(2, rel=0.01)
    assert sizes[COMPOSE[2]] == pytest.approx(2 * (sizes[COMPOSE[1]] or 0), rel=0.03)
    report = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "X centred" in report


def test_a_model_that_cannot_be_had_is_one_error(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(MODEL, registry=registry).source
    assert (source.kind, source.location) == ("plugin", "helpers.stranger:x_folder")
    monkeypatch.delenv(stranger.FOLDER, raising=False)
    with pytest.raises(RunError, match=r"^model 'x-model.1' of stranger could not be had: KeyError: 'STRANGER_MODEL'$"):
        _ = OpenModel(source).config
    monkeypatch.setenv(stranger.FOLDER, str(tmp_path))
    with pytest.raises(RunError, match=r"^model 'x-model.1' of stranger is not usable: the folder .* holds no model"):
        _ = OpenModel(source).config
    with pytest.raises(UnknownNameError, match=r"did you mean x-model\.1.*\n.*as one of a plugin \(x-model\.1\)"):
        open_model("x-model.2", registry=registry)


def broken_metrics(provider: str) -> Registry:
    """The metrics with three that cannot be used."""
    wrong = (
        ("nowhere", "helpers.nowhere:Nothing"),
        ("renamed", "helpers.stranger:XMetric"),
        ("plain", "helpers.stranger:XSpace"),
    )
    own = collect([], {}).of_kind(Kind.METRIC)
    return register(
        [*own, *(PartSpec(Kind.METRIC, name, target, "for a test", provider=provider) for name, target in wrong)]
    )


def test_a_plugins_broken_metric_is_told_and_left_out() -> None:
    registry = broken_metrics("stranger")
    assert registered_metrics(registry) == registered_metrics(collect([], {}))
    told = metric_problems(registry)
    assert [text.partition(" is not measured: ")[0] for text in told] == [
        f"metric {name!r} of plugin 'stranger'" for name in ("nowhere", "renamed", "plain")
    ]
    assert "cannot be imported" in told[0]
    assert "calls itself 'x_metric'" in told[1]
    assert "has neither `measure` nor `derive`" in told[2]


def test_a_broken_metric_of_kvfw_itself_is_an_error() -> None:
    with pytest.raises(RequestError, match="cannot be imported"):
        registered_metrics(broken_metrics("kvfw"))


def test_a_resumed_run_tells_of_other_plugins() -> None:
    first = {"plugins": {name: {"distribution": f"kvfw-{name}", "version": "1.0"} for name in ("a", "b", "c")}}
    now = {
        "plugins": {
            "a": {"distribution": "kvfw-a", "version": "1.0"},
            "b": {"distribution": "kvfw-b", "version": "1.1"},
            "d": {"distribution": None, "version": None},
        }
    }
    assert changed_versions(first, [now]) == (
        "the run is resumed with other software: plugin b was kvfw-b 1.0 and is now kvfw-b 1.1",
        "the run is resumed with other software: plugin c was kvfw-c 1.0 and is now not there",
        "the run is resumed with other software: plugin d was not there and is now of unknown version",
    )
    assert changed_versions(first, [first]) == ()
    # Runs of older versions recorded names alone.
    assert changed_versions({"plugins": ["kvfw", "a"]}, [now]) == ()
