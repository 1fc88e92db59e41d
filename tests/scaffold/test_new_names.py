"""What a plugin may be called, and what happens where it may not: one error, nothing written."""

from importlib.metadata import requires
from pathlib import Path

import pytest

from kvfw.cli.main import run
from kvfw.core.compose.syntax import parse_part
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import default_registry
from kvfw.scaffold.kinds import BLUEPRINTS
from kvfw.scaffold.names import MAX_CHARS, check_name, class_name
from kvfw.scaffold.requirements import imported_ranges, own_range, ranges


@pytest.mark.parametrize("name", ["a", "key_norm", "h2", "x1_y2", "match", "a" * MAX_CHARS])
def test_good_names(name: str) -> None:
    check_name(name)
    assert name.isidentifier()
    assert parse_part(name).name == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Key-Norm", "for example key_norm"),
        ("KEYNORM", "for example keynorm"),
        ("2nd", "for example nd"),
        ("", "starting with a letter"),
        ("_", "starting with a letter"),
        ("_hidden", "for example hidden"),
        ("a__b", "for example a_b"),
        ("ünorm", "for example norm"),
        ("../up", "for example up"),
        ("lambda", "a word of Python"),
        ("full", "a word with a meaning of its own in kvfw"),
        ("none", "a word with a meaning of its own in kvfw"),
        ("a" * 41, "at most 40"),
        ("snapkv", "taken by a scorer of kvfw"),
        ("niah", "taken by a task of kvfw"),
        ("ewmeans_pre", "taken by a method of kvfw"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", name, "--kind", "scorer", "--out", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_like_an_option_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "--kind", "scorer", "--", "-x"]) == 2
    assert "'-x' is no name for a part" in capsys.readouterr().err


def test_a_package_that_is_installed_already_is_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvfw_mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["new", "mine", "--kind", "scorer", "--out", str(tmp_path)]) == 2
    assert "package kvfw_mine is installed already" in capsys.readouterr().err


def test_the_name_of_an_installed_plugin_is_taken_even_where_its_parts_are_called_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kvfw]\ntheirs = other_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["new", "theirs", "--kind", "scorer", "--out", str(tmp_path)]) == 2
    assert "taken by an installed plugin (other_package)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words"),
    [("scorerz", "Did you mean scorer"), ("stages", "Did you mean stage"), ("model", "unknown kind 'model'")],
)
def test_an_unknown_kind_is_refused(kind: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "mine", "--kind", kind, "--out", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_every_kind_with_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in BLUEPRINTS)
    assert set(Kind) - set(BLUEPRINTS) == {Kind.MODEL}


def test_class_names() -> None:
    assert class_name("key_norm", "scorer") == "KeyNormScorer"
    assert class_name("my_scorer", "scorer") == "MyScorer"
    # Otherwise it would hide the contract of that name.
    assert class_name("scorer", "scorer") == "ScorerScorer"


def test_requirements_are_kvfws_own() -> None:
    assert ranges(["torch", "pydantic"]) == sorted(r for r in requires("kvfw") or () if r.startswith(("torch", "pyd")))
    assert imported_ranges("import torch\nfrom jaxtyping import Float\nfrom kvfw import Part\nimport os\n") == ranges(
        ["torch", "jaxtyping"]
    )
    assert ranges(["mypy"]) == [r.partition(";")[0] for r in requires("kvfw") or () if r.startswith("mypy")]
    assert own_range("0.1.7") == "kvfw>=0.1,<0.2"
    assert own_range("2.3.0") == "kvfw>=2.3,<3"


def test_every_blueprint_can_be_told_from_what_is_built_in() -> None:
    built_in = {spec.summary for spec in default_registry().specs.values()}
    assert not built_in & {blueprint.summary for blueprint in BLUEPRINTS.values()}
