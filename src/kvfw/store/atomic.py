"""Writes whole files: a reader sees the old content or the new, never a mixture."""

import contextlib
import json
import os
from pathlib import Path

from kvfw.errors import StoreError

TEMPORARY_SUFFIX = ".kvfw-tmp"


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces ``path`` in one step, creating parent folders. On failure (StoreError) the old file is untouched."""
    # Not tempfile, whose files only the owner can read.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(
            f"cannot write {path}: {cause(error)}. What the folder held before is unchanged; "
            "make room or access, then do the same again (kvfw eval: with --resume)"
        ) from error


def sync_folder(folder: Path) -> None:
    """Makes new files in a folder survive a power cut, where the platform supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(data: object, *, indent: int | None = 2) -> str:
    """Strict JSON text ending in a newline.

    Raises:
        ValueError: NaN, infinity or a circular structure.
        TypeError: a type JSON does not have.
    """
    return json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def cause(error: OSError) -> str:
    """The operating system's error text, e.g. "No space left on device"."""
    return error.strerror or str(error) or type(error).__name__
