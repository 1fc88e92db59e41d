"""Writing whole files so that a reader sees the old content or the new, never half of one."""

import contextlib
import json
import os
from pathlib import Path

from kvfw.errors import StoreError

TEMPORARY_SUFFIX = ".kvfw-tmp"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file with this content; folders on the way are made.

    Raises:
        StoreError: the file cannot be written. An older version of it is left as it was.
    """
    # A name of our own rather than tempfile's: that one is created readable by the owner only.
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
    """Make new names in a folder survive a power cut, where the platform can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(data: object, *, indent: int | None = 2) -> str:
    """Strict JSON text, ending in a newline.

    Raises:
        ValueError: a NaN, an infinity or a circular structure.
        TypeError: a value JSON does not have.
    """
    return json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def cause(error: OSError) -> str:
    """The operating system's words for a failure, e.g. "No space left on device"."""
    return error.strerror or str(error) or type(error).__name__
