"""The folder appears whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from kvfw.cli.main import run
from kvfw.core.parts.spec import Kind
from kvfw.errors import RunError
from kvfw.scaffold.kinds import BLUEPRINTS
from kvfw.scaffold.render import files
from kvfw.scaffold.write import write_files


def test_it_says_what_was_written_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--kind", "Scorer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    made = {path.relative_to("kvfw-mine").as_posix() for path in Path("kvfw-mine").rglob("*") if path.is_file()}
    assert made == {
        "pyproject.toml",
        "README.md",
        "src/kvfw_mine/__init__.py",
        "src/kvfw_mine/scorer.py",
        "src/kvfw_mine/py.typed",
        "tests/test_mine.py",
    }
    assert made == {line.strip() for line in lines if line.strip() in made}
    assert lines[-4:] == [
        "  pip install -e './kvfw-mine[dev]'",
        "  pytest ./kvfw-mine",
        "  kvfw verify mine",
        "  kvfw eval --compose snapkv --compose mine",
    ]
    assert list(Path().iterdir()) == [Path("kvfw-mine")]


def test_the_place_of_the_folder_is_in_the_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "my plugins"
    place.mkdir()
    assert run(["new", "mine", "--kind", "task", "--out", str(place)]) == 0
    assert f"pip install -e '{place}/kvfw-mine[dev]'" in capsys.readouterr().out


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        assert run(["new", "mine", "--kind", "space", "--out", str(tmp_path)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "kvfw-mine").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "kvfw-mine" / "README.md").stat().st_mode) == 0o644


@pytest.mark.parametrize("what", ["folder", "file", "dangling link"])
def test_what_is_there_already_is_left_alone(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "kvfw-mine"
    if what == "folder":
        target.mkdir()
    elif what == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    assert run(["new", "mine", "--kind", "scorer", "--out", str(tmp_path)]) == 2
    assert "exists already and is left as it is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "mine", "--kind", "scorer", "--out", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder; make it first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    real = Path.write_text

    def fills_up(self: Path, text: str, encoding: str | None = None, newline: str | None = None) -> int:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(self)
        return real(self, text, encoding=encoding, newline=newline)

    monkeypatch.setattr(Path, "write_text", fills_up)
    assert run(["new", "mine", "--kind", "scorer", "--out", str(tmp_path)]) == 1
    assert "No space left on device. Nothing was written" in capsys.readouterr().err
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # chmod would not stop a test that runs as root

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuses)
    with pytest.raises(RunError, match=r"cannot write .*kvfw-mine: Permission denied"):
        write_files(tmp_path / "kvfw-mine", {"a": "b"})


@pytest.mark.parametrize("kind", BLUEPRINTS)
def test_the_templates_are_complete_and_end_as_texts_do(kind: Kind) -> None:
    for name, text in files("mine", BLUEPRINTS[kind]).items():
        assert "{{" not in text, name
        assert "{%" not in text, name
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), name
        assert "\n\n\n\n" not in text, name
