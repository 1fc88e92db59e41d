"""One writer per run folder."""

from pathlib import Path

from filelock import FileLock, Timeout

from kvfw.errors import RequestError, StoreError
from kvfw.store.atomic import cause

LOCK_NAME = ".kvfw.lock"


def hold(folder: Path) -> FileLock:
    """Takes the folder's lock without waiting. The system frees it when the process ends, even if killed.

    Raises:
        RequestError: another process holds it.
        StoreError: the lock file cannot be created.
    """
    lock = FileLock(folder / LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RequestError(
            f"another process is writing to {folder}; wait for it to end or choose another --out"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot lock {folder}: {cause(error)}") from error
    return lock
