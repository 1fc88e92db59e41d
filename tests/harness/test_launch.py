"""lm-eval's command line is reached, or one error says what to install."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kvfw.cli.main import run
from kvfw.harness import launch

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_versions_that_read_entry_points_find_the_same_model() -> None:
    assert PROJECT["entry-points"]["lm_eval.models"] == {"kvfw": launch.MODEL}


def test_without_lm_eval_one_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert run(["lm-eval", "--model", "kvfw", "--tasks", "task.yaml"]) == 2
    assert "error: lm_eval and accelerate not installed; pip install 'kvfw[lm-eval]'" in capsys.readouterr().err
    assert "lm-eval" in PROJECT["optional-dependencies"]


def test_all_arguments_are_lm_evals(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[tuple[str, ...]]()
    monkeypatch.setattr(launch, "launch", heard.append)
    for words in (("--model", "kvfw", "-t", "a.yaml"), ("run", "--help"), ("ls", "tasks")):
        assert run(["lm-eval", *words]) == 0
        assert heard.pop() == words


def test_a_target_runs_the_tests_that_need_lm_eval_in_the_versions_that_the_extra_admits() -> None:
    """They are no ``test_*.py``, so nothing else collects them."""
    assert "pytest tests/harness/with_lm_eval.py\n" in (ROOT / "Makefile").read_text("utf-8")
    assert (ROOT / "tests" / "harness" / "with_lm_eval.py").exists()
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints-lm-eval.txt").read_text("utf-8").splitlines()
        if line[0] != "#"
    ]
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    for wanted in map(Requirement, PROJECT["optional-dependencies"]["lm-eval"]):
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier
