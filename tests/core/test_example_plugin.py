"""The example plugin, found through the entry point its own pyproject.toml declares."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from torch import tensor

from helpers.observations import observe, random_row
from kvfw.core.budget import amount
from kvfw.core.compressor import compressor
from kvfw.core.hookspecs import GROUP
from kvfw.core.registry import Registry, collect
from kvfw.core.spec import parse

PLUGIN = Path(__file__).parents[2] / "plugins" / "kvfw-keynorm"


@pytest.fixture(scope="module")
def registry() -> Registry:
    declared = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    return collect([EntryPoint(name, value, GROUP) for name, value in declared.items()])


def test_its_scorer_is_registered_under_its_own_name(registry: Registry) -> None:
    assert not registry.problems
    assert registry.stage("key_norm").provider == "keynorm"


@pytest.mark.parametrize(
    "text", ["key_norm", "key_norm:0.5+ewmeans_pre(weight=snapkv):0.5", "key_norm:0.5+streaming:0.5"]
)
def test_it_works_in_compositions(registry: Registry, text: str) -> None:
    bound = compressor(parse(text, registry), amount(ratio=4), sinks=2, recent=3, registry=registry)
    state = bound.compress(observe([random_row(45, seed=1)]), tensor([[10, 10]]))
    assert state.valid.sum(-1).tolist() == [[15, 15]]
