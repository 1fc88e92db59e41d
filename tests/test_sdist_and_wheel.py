"""What is published: an sdist, the wheel made of it, and an evaluation that runs from the wheel alone."""

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from helpers.installs import ROOT, Installed, built, install_alone

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist and a wheel."""
    return built(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def alone(published: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own."""
    return install_alone(tmp_path_factory.mktemp("alone"), published[1])


def wanted() -> set[str]:
    """Every file of the package: code, templates, texts, and the mark that it is typed."""
    source = ROOT / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / "kvfw").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_both_carry_every_file_of_the_package(published: tuple[Path, Path]) -> None:
    sdist, wheel = published
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {"kvfw/py.typed", "kvfw/tasks/data/moby-dick.txt", "kvfw/scaffold/templates/stage/part.py.j2"} <= wanted()
    assert in_wheel == wanted()
    assert in_sdist >= {f"src/{name}" for name in wanted()} | {"pyproject.toml", "README.md", "LICENSE"}
    assert len(licences) == 1


def test_the_wheel_evaluates_in_an_empty_environment(alone: Installed, tmp_path: Path) -> None:
    where = alone.run("-c", "import kvfw; print(kvfw.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(alone.python.parents[1]), where.stdout + where.stderr
    grid = ["--contexts", "512", "--depths", "50", "--max-new-tokens", "4"]
    done = alone.kvfw("eval", "--compose", "streaming", *grid, "--json", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["compose"] for row in rows] == ["full", "streaming"]
    assert rows[1]["metrics"]["kv_mb"]["mean"] < rows[0]["metrics"]["kv_mb"]["mean"]
    assert rows[0]["metrics"]["ref_ppl"]["mean"] > 1
    # Made of the template that the wheel carries.
    assert "streaming" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_wheel_brings_the_command_and_its_templates(alone: Installed, tmp_path: Path) -> None:
    assert (alone.python.parent / "kvfw").exists() or (alone.python.parent / "kvfw.exe").exists()
    done = alone.kvfw("new", "mine", "--kind", "stage", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kvfw-mine" / "src" / "kvfw_mine" / "stage.py").exists()
