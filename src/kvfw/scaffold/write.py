"""Writes what is new: all of it or nothing."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvfw.errors import RequestError, RunError


def check_free_path(path: Path) -> None:
    """Refuses to write over what is there.

    Raises:
        RequestError: something has that name already.
    """
    if os.path.lexists(path):  # a dangling link is something, too
        raise RequestError(f"{path} exists already and is left as it is; choose another name or another folder")


def write_folder(target: Path, files: Mapping[str, str]) -> None:
    """Writes the files into a temporary folder beside ``target``, which then takes its name.

    Raises:
        RequestError: there is no folder to write it in, or something of that name in it.
        RunError: the disk refuses. Nothing is left behind.
    """
    if not target.parent.is_dir():
        raise RequestError(f"{target.parent} is not a folder; make it first, or name another with --out")
    check_free_path(target)
    with _staged(target.parent, target) as temporary:
        # One folder deeper: the temporary folder itself is closed to others.
        for name, text in files.items():
            _write(temporary / target.name / name, text)
        (temporary / target.name).rename(target)


def write_into(project: Path, files: Mapping[Path, str]) -> None:
    """Writes files of a project, which appear, or are replaced, when all of them have been written elsewhere.

    Raises:
        RunError: the disk refuses.
    """
    with _staged(project, project) as temporary:
        made = {path: temporary / str(i) for i, path in enumerate(files)}
        for path, text in files.items():
            _write(made[path], text)
        for path, new in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            new.replace(path)


@contextmanager
def _staged(parent: Path, target: Path) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix=".kvfw-new-", dir=parent) as temporary:
            yield Path(temporary)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}. Nothing was written") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
