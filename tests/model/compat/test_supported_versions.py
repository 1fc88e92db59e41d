"""What pyproject.toml says of transformers is what tests run with: its oldest and its newest, in two environments."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import transformers
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from helpers.families import FAMILIES
from helpers.pins import ROOT, pinned

#: The folder `make oldest` makes its environment in.
OLDEST = ".venv-oldest"


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


def test_the_quick_selection_names_families_and_tests_that_are_there() -> None:
    """A word that fits nothing would leave tests out without a sound."""
    (chosen,) = re.findall(r"^QUICK := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    words = set(re.findall(r"\w+", chosen)) - {"not", "or", "and"}
    tests = (ROOT / "tests" / "model" / "session" / "test_families.py").read_text("utf-8")
    assert words - set(FAMILIES) == {"test_families", "test_it_holds"}
    assert "def test_it_holds(" in tests
