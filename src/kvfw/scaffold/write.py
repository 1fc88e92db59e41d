"""Writes several files all or nothing."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvfw.errors import RequestError, RunError


def check_absent(path: Path) -> None:
    """Raises RequestError if the path exists already."""
    if os.path.lexists(path):  # counts dangling links, too
        raise RequestError(f"{path} exists already and is left as it is; choose another name or another folder")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files elsewhere first, then moves them into the folder; a new folder appears complete.

    Raises:
        RequestError: neither the folder nor its parent exists.
        RunError: writing failed. Nothing is left behind.
    """
    new = not os.path.lexists(folder)
    if new and not folder.parent.is_dir():
        raise RequestError(f"{folder.parent} is not a folder; make it first, or name another with --out")
    try:
        with tempfile.TemporaryDirectory(prefix=".kvfw-new-", dir=folder.parent if new else folder) as temporary:
            # One level deeper, because the temporary folder itself is private to its owner.
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
