"""Answers to a user's prompt on a tiny model: every kind of composition, and what is refused before weights load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry, register
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import KVState
from kvfw.errors import KvfwError, OptionError, SpecError, UnsupportedError
from kvfw.runner.execute.generate import generate
from kvfw.runner.plan.config import GenerateConfig

PROMPT = "the whale " * 120


class Doubling(Part):
    """A refiner that doubles values."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def refine(self, state: KVState, obs: Observation) -> KVState:
        return KVState(state.keys, state.values * 2, *state.parts[2:])


@pytest.fixture(scope="module")
def registry() -> Registry:
    spec = PartSpec(Kind.REFINER, "doubling", f"{__name__}:Doubling", "doubles values")
    return register((*default_registry().specs.values(), spec))


def asked(folder: Path, *compose: str, **more: Any) -> GenerateConfig:
    return GenerateConfig(model=str(folder), prompt=PROMPT, compose=compose, max_new_tokens=4, **more)


def kv_mb(numbers: str) -> float:
    return float(numbers.partition("KV ")[2].split()[0])


@pytest.mark.parametrize(
    "compose",
    [
        "snapkv@adakv(floor=0.3)",
        "snapkv@pyramid",
        "[0]full;[1]snapkv",
        "kvzip",
        "kvzip(plus=true)@global",
        "snapkv|doubling",
        "[0]full;[1]kvzip@adakv|doubling",
    ],
)
@pytest.mark.parametrize("chunk", [None, 50], ids=["at once", "in chunks"])
def test_policies_allocators_probes_and_refiners_run(
    tiny_folder: Path, registry: Registry, compose: str, chunk: int | None
) -> None:
    full, found = generate(asked(tiny_folder, compose, prefill_chunk=chunk), registry)
    assert found.title == f"{compose} ratio=4"
    assert 0 < kv_mb(found.numbers) < kv_mb(full.numbers)


def test_a_refiner_changes_the_answers_bytes_in_no_way(tiny_folder: Path, registry: Registry) -> None:
    _, plain, refined = generate(asked(tiny_folder, "snapkv", "snapkv|doubling"), registry)
    assert plain.numbers == refined.numbers


@pytest.mark.parametrize(
    ("compose", "more", "error", "words"),
    [
        ("[0-99]snapkv", {}, SpecError, r"the model has 2 layers, 0 to 1(.|\n)*\n *\^"),
        ("[0]snapkv;[0-]streaming", {}, SpecError, "layer 0 is in two policies"),
        ("[1]snapkv", {}, SpecError, "layers 0 of 2 are in no policy"),
        ("snapkv@nope", {}, SpecError, "unknown allocator 'nope'"),
        ("position@global", {}, SpecError, "no common unit"),
        ("kvzip(probe=no_such.txt)", {}, OptionError, "'no_such.txt' is neither 'repeat' nor a text file"),
        ("kvzip", {"compress_every": 8}, UnsupportedError, "kvzip: compress_every compresses slots"),
        ("pinned", {"compress_every": 8}, UnsupportedError, "pinned: compress_every compresses slots"),
    ],
)
def test_wrong_compositions_are_refused_before_weights_load(
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    compose: str,
    more: dict[str, Any],
    error: type[KvfwError],
    words: str,
) -> None:
    monkeypatch.setattr("kvfw.model.load.load.OpenModel.load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(error, match=words):
        generate(asked(tiny_folder, compose, **more))
