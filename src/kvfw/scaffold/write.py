"""Writes files all together or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvfw.errors import RequestError, RunError


def check_absent(path: Path) -> None:
    """Refuses to write over what is there.

    Raises:
        RequestError: something has that name already.
    """
    if os.path.lexists(path):  # a dangling link is something, too
        raise RequestError(f"{path} exists already and is left as it is; choose another name or another folder")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files elsewhere first, and moves them into the folder when all are there.

    A folder that does not exist yet appears whole, beside what its parent holds.

    Raises:
        RequestError: there is neither the folder nor its parent.
        RunError: the disk refuses. Nothing is left behind.
    """
    new = not os.path.lexists(folder)
    if new and not folder.parent.is_dir():
        raise RequestError(f"{folder.parent} is not a folder; make it first, or name another with --out")
    try:
        with tempfile.TemporaryDirectory(prefix=".kvfw-new-", dir=folder.parent if new else folder) as temporary:
            # One folder deeper: the temporary folder itself is closed to others.
            made = Path(temporary) / folder.name
            for name, text in files.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            for name in ("",) if new else files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).replace(folder / name)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror or error}. Nothing was written") from error
