"""Plugins as `kvfw new` writes them, untouched: installed, their own tests, linting, types, the conformance suite."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.linting import linted
from helpers.outside import mypy
from helpers.pages import DOCS, blocks
from kvfw.cli.main import run
from kvfw.core.parts.spec import Kind
from kvfw.scaffold.kinds import BLUEPRINTS
from kvfw.scaffold.names import MAX_CHARS

NAMES = {kind: f"new_{kind}" for kind in BLUEPRINTS}


@dataclass(frozen=True)
class Made:
    """All new plugins: where they were written, and where they are installed."""

    folder: Path
    site: Path

    @property
    def plugins(self) -> list[Path]:
        return sorted(self.folder.glob("kvfw-*"))

    def python(self, *arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs Python with the plugins installed."""
        path = os.pathsep.join([str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder or self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("new")
    for kind, name in NAMES.items():
        assert run(["new", name, "--kind", kind, "--out", str(folder)]) == 0
    made = Made(folder, tmp_path_factory.mktemp("site"))
    # Really installed, into a folder of its own: what makes a plugin is the entry point in its metadata.
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    done = made.python("-m", *pip, made.site, *made.plugins)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.real
def test_they_are_installed_and_announced(made: Made) -> None:
    done = made.python("-m", "kvfw", "list")
    assert done.returncode == 0
    assert done.stderr == ""
    for kind, name in NAMES.items():
        assert f"  {name} " in done.stdout, kind
        assert BLUEPRINTS[kind].summary in done.stdout


@pytest.mark.real
def test_their_own_tests_pass(made: Made) -> None:
    # All in one process: eight imports of torch would take most of the time.
    done = made.python("-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", made.folder, *made.plugins)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in NAMES.values():
        assert f"kvfw-{name}/tests/test_{name}.py::" in done.stdout


@pytest.mark.real
def test_kvfw_verify_passes(made: Made) -> None:
    # The suite is in their own tests, too, there without the times, which take longest.
    done = made.python("-m", "kvfw", "verify", NAMES[Kind.SCORER])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed, 0 failed" in done.stdout


@pytest.mark.real
def test_they_are_typed(made: Made) -> None:
    sources = [path for plugin in made.plugins for path in (plugin / "src", plugin / "tests")]
    done = mypy(["--config-file=", "--strict", *sources], folder=made.folder, paths=[p / "src" for p in made.plugins])
    assert done.stdout.startswith("Success: no issues found in"), done.stdout + done.stderr
    # As their authors will run it: the settings are in the plugin's own pyproject.toml.
    done = mypy([], folder=made.folder / f"kvfw-{NAMES[Kind.SCORER]}")
    assert done.stdout.startswith("Success: no issues found in 3 source files"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["a", "n" * MAX_CHARS, "_".join("n" * (MAX_CHARS // 2))])
def test_they_are_linted_and_formatted_whatever_they_are_called(name: str, tmp_path: Path) -> None:
    for kind in BLUEPRINTS:
        folder = tmp_path / kind
        folder.mkdir()
        assert run(["new", name, "--kind", kind, "--out", str(folder)]) == 0
    linted(tmp_path)


def test_the_tutorials_plugin_is_linted_and_formatted(tmp_path: Path) -> None:
    """By the settings of its own folder, where kvfw is a library like others."""
    assert run(["new", "myscore", "--kind", "scorer", "--out", str(tmp_path)]) == 0
    files = {block.remark("file"): block.text for block in blocks(DOCS / "tutorial.md") if block.remark("file")}
    assert len(files) == 2
    for name, text in files.items():
        (tmp_path / str(name)).write_text(text, encoding="utf-8")
    linted(tmp_path)


@pytest.mark.real
def test_they_work_in_an_experiment(made: Made, tiny_folder: Path, tmp_path: Path) -> None:
    """All of them in one run on a small random model."""
    compositions = [
        NAMES[Kind.SCORER],
        NAMES[Kind.METHOD],
        f"snapkv:0.5+{NAMES[Kind.STAGE]}(scorer={NAMES[Kind.SCORER]}):0.5",
        f"select(scorer=snapkv,selector={NAMES[Kind.SELECTOR]})",
        f"snapkv@{NAMES[Kind.ALLOCATOR]}|{NAMES[Kind.REFINER]}|{NAMES[Kind.CODEC]}",
        f"merge(merger={NAMES[Kind.MERGER]},space={NAMES[Kind.SPACE]},weight={NAMES[Kind.SCORER]})",
    ]
    composed = [word for text in compositions for word in ("--compose", text)]
    grid = ["--contexts", "400", "--depths", "50", "--max-new-tokens", "4", "--json"]
    task = ["--task", NAMES[Kind.TASK]]
    done = made.python("-m", "kvfw", "eval", "--model", tiny_folder, "--out", tmp_path / "run", *task, *composed, *grid)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["compose"] for row in rows] == ["full", *compositions]
    assert all(row["metrics"][NAMES[Kind.METRIC]]["mean"] > 0 for row in rows)
    assert rows[0]["metrics"][NAMES[Kind.METRIC]]["mean"] == 1
