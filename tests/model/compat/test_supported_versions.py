"""What pyproject.toml says of transformers is what tests run with: its oldest and its newest, in two environments."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import transformers
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[3]
#: The folder `make oldest` makes its environment in.
OLDEST = ".venv-oldest"


def pinned(constraints: str) -> dict[str, Version]:
    """The packages of a file of pins, by name."""
    lines = (ROOT / constraints).read_text("utf-8").splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pairs}


def required() -> dict[str, SpecifierSet]:
    """The ranges of pyproject.toml, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {wanted.name: wanted.specifier for wanted in map(Requirement, project["dependencies"])}


def lowest(name: str) -> Version:
    """Where a range begins."""
    (bound,) = [Version(part.version) for part in required()[name] if part.operator == ">="]
    return bound


def test_the_range_of_transformers_is_what_is_tested() -> None:
    oldest, newest = pinned("constraints-oldest.txt")["transformers"], pinned("constraints.txt")["transformers"]
    first, after = oldest.release, newest.release
    assert required()["transformers"] == SpecifierSet(f">={first[0]}.{first[1]},<{after[0]}.{after[1] + 1}")
    assert first[2] == 0, "the range begins with the first release of a minor version, so this one has to be tested"


def test_what_comes_with_transformers_begins_where_it_was_tested() -> None:
    oldest = pinned("constraints-oldest.txt")
    for name in ("huggingface-hub", "tokenizers"):
        assert lowest(name) == Version(str(oldest[name]).removesuffix(".0")), name


def test_the_environments_differ_in_nothing_else() -> None:
    # Only what transformers brings along; everything else in .venv-oldest is .venv's own.
    brought = {"transformers", "tokenizers", "huggingface-hub", "httpx", "httpcore"}
    assert set(pinned("constraints-oldest.txt")) == brought


def test_this_environment_has_the_version_it_is_there_for() -> None:
    constraints = "constraints-oldest.txt" if Path(sys.prefix).name == OLDEST else "constraints.txt"
    assert Version(transformers.__version__) == pinned(constraints)["transformers"]
    assert (Path(sys.prefix).name == OLDEST) == Path(transformers.__file__).is_relative_to(ROOT / OLDEST)
