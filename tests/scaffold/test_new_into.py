"""`kvfw new --into`: another part for a plugin that is there already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.linting import linted
from kvfw.cli.main import run
from kvfw.core.parts.spec import Kind
from kvfw.errors import RequestError
from kvfw.scaffold.into import find_host, with_announcement
from kvfw.scaffold.kinds import BLUEPRINTS
from kvfw.scaffold.names import MAX_CHARS

NEW = 'PartSpec(\n    kind=Kind.SCORER,\n    name="new",\n),'
HEAD = "from kvfw import Kind, PartSpec, hookimpl\n\n\n@hookimpl\ndef kvfw_parts():\n"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A plugin with a scorer."""
    assert run(["new", "mine", "--kind", "scorer", "--out", str(tmp_path)]) == 0
    return tmp_path / "kvfw-mine"


def test_every_kind_can_be_added_and_all_of_it_is_announced_and_formatted(mine: Path) -> None:
    long = "n" * MAX_CHARS
    for kind in BLUEPRINTS:
        assert run(["new", f"my_{kind}", "--kind", kind, "--into", str(mine)]) == 0
    assert run(["new", long, "--kind", "selector", "--into", str(mine)]) == 0
    linted(mine)
    code = (
        "import kvfw_mine\nfor spec in kvfw_mine.kvfw_parts():\n    print(spec.kind, spec.name, spec.load().__module__)"
    )
    path = os.pathsep.join([str(mine / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    added = [f"{kind} my_{kind} kvfw_mine.my_{kind}" for kind in BLUEPRINTS]
    assert done.stdout.splitlines() == [
        f"selector {long} kvfw_mine.{long}",
        *reversed(added),
        "scorer mine kvfw_mine.scorer",
    ], done.stderr


@pytest.mark.real
def test_the_tests_that_were_added_pass(mine: Path, tmp_path: Path) -> None:
    for kind in (Kind.STAGE, Kind.TASK):
        assert run(["new", f"my_{kind}", "--kind", kind, "--into", str(mine)]) == 0
    site = tmp_path / "site"
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    for command in ([*pip, str(mine)], ["pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(mine), str(mine)]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_was_written_and_what_comes_next(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["new", "other", "--kind", "stage", "--into", str(mine)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{mine}: a plugin with a stage other",
        "  src/kvfw_mine/other.py",
        "  tests/test_other.py",
        "  src/kvfw_mine/__init__.py",
        "Your formula goes into src/kvfw_mine/other.py. Next:",
        f"  pip install -e '{mine}[dev]'",
        f"  pytest {mine}",
        "  kvfw verify other",
        "  kvfw eval --compose snapkv --compose other",
    ]


@pytest.mark.parametrize("there", ["src/kvfw_mine/other.py", "tests/test_other.py"])
def test_nothing_is_overwritten(there: str, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mine / there).write_text("# mine\n", encoding="utf-8")
    before = contents(mine)
    assert run(["new", "other", "--kind", "metric", "--into", str(mine)]) == 2
    assert f"{mine / there} exists already and is left as it is" in capsys.readouterr().err
    assert contents(mine) == before


def test_a_name_that_is_taken_is_refused(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(mine)
    assert run(["new", "snapkv", "--kind", "metric", "--into", str(mine)]) == 2
    assert "taken by a scorer of kvfw" in capsys.readouterr().err
    assert contents(mine) == before


def test_a_part_may_be_called_as_its_plugin(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of packages are no parts' names, where no package is written."""
    (tmp_path / "kvfw_other.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["new", "other", "--kind", "scorer", "--out", str(tmp_path)]) == 2
    assert run(["new", "other", "--kind", "scorer", "--into", str(mine)]) == 0


@pytest.mark.parametrize(
    "pyproject",
    [
        None,
        "not toml",
        "project = 3",
        "[project]\nname = 'x'",
        "[project]\nentry-points = 3",
        "[project.entry-points]\nkvfw = ['kvfw_x']",
        "[project.entry-points.kvfw]\nx = 3",
        "[project.entry-points.kvfw]\nx = 'kvfw_elsewhere'",
        "[project.entry-points.kvfw]\nx = 'single_module'",
    ],
)
def test_a_folder_that_is_no_plugin_is_one_clear_error(
    pyproject: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "single_module.py").touch()
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    before = contents(tmp_path)
    assert run(["new", "other", "--kind", "scorer", "--into", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: {tmp_path} is no plugin: --into takes a folder whose pyproject.toml names a package"
    )
    assert said.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_folder_that_is_not_there_is_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is no plugin"):
        find_host(tmp_path / "absent")


def test_one_place_is_named(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "other", "--kind", "scorer", "--into", str(mine), "--out", str(mine)]) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ["theirs", "theirs.plugin", "theirs.plugin:announce"])
@pytest.mark.parametrize("base", ["src", "."])
def test_a_package_that_was_made_otherwise_takes_parts_too(base: str, entry: str, tmp_path: Path) -> None:
    package = tmp_path / base / "theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    announcer = package / ("plugin.py" if "plugin" in entry else "__init__.py")
    announcer.write_text(f"{HEAD}    return ()\n")
    (tmp_path / "pyproject.toml").write_text(f"[project.entry-points.kvfw]\nx = '{entry}'\n", encoding="utf-8")
    assert find_host(tmp_path) == ("theirs", announcer)
    assert run(["new", "other", "--kind", "space", "--into", str(tmp_path)]) == 0
    assert 'target="theirs.other:OtherSpace"' in announcer.read_text()
    assert "from theirs.other import OtherSpace" in (tmp_path / "tests" / "test_other.py").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    return []\n", f"    return [\n@{NEW}\n    ]\n"),
        ("    return ()  # none\n", f"    return (\n@{NEW}\n    )  # none\n"),
        ("    return [PartSpec(1)]\n", f"    return [\n@{NEW}\n        PartSpec(1),\n    ]\n"),
        ("    return [one(', ]'), two]\n", f"    return [\n@{NEW}\n        one(', ]'),\n        two,\n    ]\n"),
        ("    return [\n        PartSpec(1),\n    ]\n", f"    return [\n@{NEW}\n        PartSpec(1),\n    ]\n"),
        ("    return [  # mine\n        one\n    ]\n", f"    return [\n@{NEW}  # mine\n        one\n    ]\n"),
        ("    ä = 'ä'; return [ä]\n", f"    ä = 'ä'; return [\n@{NEW}\n        ä,\n    ]\n"),
        ("    return [\r\n        one,\r\n    ]\r\n", f"    return [\n@{NEW}\r\n        one,\r\n    ]\r\n"),
    ],
)
def test_a_written_out_list_gets_the_part_at_its_head(before: str, after: str) -> None:
    expected = after.replace(f"@{NEW}", "\n".join(f"        {line}" for line in NEW.splitlines()))
    assert with_announcement(HEAD + before, NEW) == HEAD + expected


@pytest.mark.parametrize(
    "source",
    [
        "no python (",
        "x = 1\n",
        HEAD + "    return sorted([PartSpec(1)])\n",
        HEAD + "    yield PartSpec(1)\n",
        HEAD + "    return one, two\n",
        HEAD + "    return (one), two\n",
        HEAD + "    if one:\n        return []\n    return [two]\n",
        HEAD.replace("Kind, ", "") + "    return []\n",
        HEAD.replace("PartSpec", "PartSpec as Spec") + "    return []\n",
        HEAD + "    return ['\udcff']\n",
    ],
)
def test_what_cannot_be_edited_safely_is_left_alone(source: str) -> None:
    assert with_announcement(source, NEW) is None


def test_a_plugin_that_computes_its_parts_is_left_alone_and_the_lines_to_add_are_said(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announcer = mine / "src" / "kvfw_mine" / "__init__.py"
    announcer.write_text(announcer.read_text().replace("return [", "return list([").replace("    ]\n", "    ])\n"))
    before = announcer.read_bytes()
    capsys.readouterr()
    assert run(["new", "other", "--kind", "space", "--into", str(mine)]) == 0
    assert announcer.read_bytes() == before
    said = capsys.readouterr().out
    assert f"{announcer} is left as it is. Add this to what its kvfw_parts returns:\nPartSpec(\n" in said
    assert '    target="kvfw_mine.other:OtherSpace",\n' in said
    assert (mine / "src" / "kvfw_mine" / "other.py").exists()
