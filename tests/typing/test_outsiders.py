"""What a type checker tells the author of a plugin: nothing on right ones, something useful on wrong ones.

Files ``wrong_*.py`` say in comments what mypy must report on that line: ``# E: part of an error``, ``# N: part of a
note``, several on a line where it says several things. Whatever else it reports as an error is a failure.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.outside import mypy

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RIGHT, WRONG = sorted(HERE.glob("right_*.py")), sorted(HERE.glob("wrong_*.py"))
REPORT = re.compile(r"(?P<file>[^:]+\.py):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)")
COMMENT = re.compile(r"# (?P<kind>[EN]): (?P<text>.*?)(?=\s*# [EN]: |$)")


@dataclass
class Told:
    """Errors and notes of a line."""

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def told() -> dict[tuple[str, int], Told]:
    """What mypy says, by file name and line, in one run over all files."""
    done = mypy(["--config-file=", "--strict", *RIGHT, *WRONG], folder=HERE)
    assert f"(checked {len(RIGHT) + len(WRONG)} source files)" in done.stdout, done.stdout + done.stderr
    found: dict[tuple[str, int], Told] = defaultdict(Told)
    for line in done.stdout.splitlines():
        report = REPORT.fullmatch(line)
        if report is not None:
            here = found[Path(report["file"]).name, int(report["line"])]
            (here.errors if report["kind"] == "error" else here.notes).append(report["text"])
    return found


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_right_plugins_pass(path: Path, told: dict[tuple[str, int], Told]) -> None:
    assert {line: said.errors for (name, line), said in told.items() if name == path.name} == {}


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_plugins_are_told_what_is_wrong(path: Path, told: dict[tuple[str, int], Told]) -> None:
    expected: set[int] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        comments = [(found["kind"], found["text"]) for found in COMMENT.finditer(line)]
        said = told.get((path.name, number), Told())
        for kind, text in comments:
            expected.add(number)
            assert any(text in words for words in (said.errors if kind == "E" else said.notes)), (number, text, said)
        unexpected = [words for words in said.errors if not any(k == "E" and text in words for k, text in comments)]
        assert unexpected == [], number
    assert expected, "a wrong plugin says what is wrong with it"


def test_every_contract_has_a_right_and_a_wrong_example() -> None:
    contracts = {"Scorer", "Selector", "Merger", "Space", "Stage", "Metric", "DerivedMetric", "Task", "Allocator"}
    for paths in (RIGHT, WRONG):
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        assert contracts == {name for name in contracts if re.search(rf": {name} = \w+\(\)", text)}
