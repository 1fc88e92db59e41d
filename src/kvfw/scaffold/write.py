"""Writes a folder whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvfw.errors import RequestError, RunError


def check_place(out: Path, folder: str) -> Path:
    """Where the folder will be.

    Raises:
        RequestError: ``out`` is no folder, or has something of that name already.
    """
    if not out.is_dir():
        raise RequestError(f"{out} is not a folder; make it first, or name another with --out")
    target = out / folder
    if os.path.lexists(target):  # a dangling link is something, too
        raise RequestError(f"{target} exists already and is left as it is; choose another name or another --out")
    return target


def write_folder(target: Path, files: Mapping[str, str]) -> None:
    """Writes the files into a temporary folder beside ``target``, which then takes its name.

    Raises:
        RunError: the disk refuses. Nothing is left behind.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".kvfw-new-", dir=target.parent) as temporary:
            # One folder deeper: the temporary folder itself is closed to others.
            made = Path(temporary) / target.name
            for name, text in files.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            made.rename(target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}. Nothing was written") from error
