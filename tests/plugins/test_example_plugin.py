"""The example plugins, found through the entry points their own pyproject.toml declare."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from torch import tensor

from helpers.observations import check_well_formed, observe, random_row
from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import compressor
from kvfw.core.registry.hooks import GROUP
from kvfw.core.registry.registry import Registry, collect
from kvfw.verify.parts import verify_part

PLUGINS = sorted((Path(__file__).parents[2] / "plugins").glob("kvfw-*"))


@pytest.fixture(scope="module")
def registry() -> Registry:
    tables = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in PLUGINS]
    declared = [item for table in tables for item in table["entry-points"][GROUP].items()]
    return collect([EntryPoint(name, value, GROUP) for name, value in declared], {})


def test_their_parts_are_registered_under_their_own_names(registry: Registry) -> None:
    assert not registry.problems
    assert {spec.name: spec.provider for spec in registry.specs.values() if spec.provider != "kvfw"} == {
        "key_norm": "keynorm",
        "segments": "segments",
        "slow": "segments",
        "pairs": "pairs",
        "same_start": "pairs",
    }


@pytest.mark.parametrize(
    "text",
    [
        "key_norm",
        "key_norm:0.5+ewmeans_pre(weight=snapkv):0.5",
        "key_norm:0.5+ewmeans_pre(weight=key_norm):0.5",
        "key_norm:0.5+streaming:0.5",
        "merge(merger=segments)",
        "snapkv:0.5+merge(merger=segments(cut=weight),space=slow(wavelength=60),bias=log):0.5",
    ],
)
@pytest.mark.parametrize("budget", [[[10, 10], [10, 10]], [[2, 12], [7, 3]]])
def test_they_work_in_compositions(registry: Registry, text: str, budget: list[list[int]]) -> None:
    bound = compressor(parse(text, registry), amount(ratio=4), sinks=2, recent=3)
    state = bound.compress(observe([random_row(45, seed=1), random_row(33, seed=2)]), tensor(budget))
    assert state.valid.sum(-1).tolist() == [[slots + 5 for slots in row] for row in budget]
    check_well_formed(state)
    if "merge" in text or "ewmeans" in text:
        assert state.mass.sum(-1).tolist() == [[45, 45], [33, 33]]


@pytest.mark.parametrize(
    "text", ["key_norm", "segments", "segments(cut=weight)", "slow", "slow(wavelength=50)", "pairs", "same_start"]
)
def test_they_keep_their_contracts(registry: Registry, text: str) -> None:
    report = verify_part(text, registry=registry, without={"cost"})
    assert report.passed, str(report)


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_each_is_a_complete_typed_package(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    (package,) = (folder / "src").glob("kvfw_*")
    assert project["tool"]["setuptools"]["package-data"] == {package.name: ["py.typed"]}
    assert (package / "py.typed").is_file()
    assert (folder / "README.md").is_file()
    assert list((folder / "tests").glob("test_*.py"))


def test_the_smallest_scorer_is_no_longer_than_25_lines() -> None:
    (scorer,) = (folder / "src" / "kvfw_keynorm" / "scorer.py" for folder in PLUGINS if folder.name == "kvfw-keynorm")
    assert len(scorer.read_text().splitlines()) <= 25
