"""``trials.jsonl``: one record per line; a killed process loses at most the line it was writing."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from kvfw.core.contracts.records import TrialKey, TrialRecord
from kvfw.errors import StoreError
from kvfw.store.atomic import cause, sync_folder
from kvfw.store.config import first_fault

TRIALS_NAME = "trials.jsonl"
TORN_NAME = "trials.torn.txt"


def encode(record: TrialRecord) -> bytes:
    """The record as one line of strict JSON, which escapes line breaks in texts."""
    return record.model_dump_json(by_alias=True).encode() + b"\n"


def decode_lines(data: bytes) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    """All valid records in file order, one sentence per invalid line. Of records with one key the first wins."""
    found: dict[TrialKey, tuple[int, TrialRecord]] = {}
    problems: list[str] = []
    for number, line in _numbered(data):
        try:
            record = TrialRecord.model_validate_json(line)
        except ValidationError as error:
            problems.append(f"{TRIALS_NAME} line {number} skipped: {first_fault(error)}")
            continue
        first, _ = found.setdefault(record.key, (number, record))
        if first != number:
            problems.append(
                f"{TRIALS_NAME} line {number} skipped: repeats line {first} ({record.key}); the first counts"
            )
    return tuple(record for _, record in found.values()), tuple(problems)


def read_trials(path: Path) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    """Records and problems of a file, none if it does not exist. Raises StoreError if it cannot be read."""
    try:
        return decode_lines(path.read_bytes())
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {cause(error)}") from error


def mend_tail(path: Path) -> tuple[str, ...]:
    """Makes the file end in a whole line, so that the next record starts a new one; returns a sentence if it lost one.

    A last line without newline is kept if it is a whole record (only the newline was lost), else moved to
    ``trials.torn.txt``. Raises StoreError if the file cannot be read or changed.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
        if not data or data.endswith(b"\n"):
            return ()
        start = data.rfind(b"\n") + 1
        tail = data[start:]
        if _is_record(tail):
            with path.open("ab") as file:
                file.write(b"\n")
                os.fsync(file.fileno())
            return ()
        with path.with_name(TORN_NAME).open("ab") as aside:
            aside.write(tail + b"\n")
            os.fsync(aside.fileno())
        with path.open("r+b") as file:
            file.truncate(start)
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot repair the torn last line of {path}: {cause(error)}") from error
    line = data.count(b"\n") + 1
    return (
        f"{TRIALS_NAME} line {line} was torn by an interrupted write ({len(tail)} bytes); "
        f"moved to {TORN_NAME}, its trial counts as not run",
    )


class TrialLog:
    """An open ``trials.jsonl``, append-only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {cause(error)}") from error
        sync_folder(path.parent)

    def append(self, record: TrialRecord) -> None:
        """Writes one line and waits until it is on disk: it then survives a kill and a power cut.

        Raises:
            StoreError: the disk is full or the file cannot be written. The file is left as it was; the message says
                how to resume.
        """
        line = encode(record)
        size = os.fstat(self._file.fileno()).st_size
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:]) or 0
            os.fsync(self._file.fileno())
        except BaseException as error:
            # Remove a partial line, or the next record would be glued to it.
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            if isinstance(error, OSError):
                raise StoreError(
                    f"cannot record {record.key} in {self._path}: {cause(error)}. All trials recorded before "
                    "are safe; make room or access, then run the same command with --resume"
                ) from error
            raise

    def close(self) -> None:
        self._file.close()


def _numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    # Split at newline bytes only: str.splitlines also splits at U+2028, which JSON leaves unescaped.
    return ((number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip())


def _is_record(line: bytes) -> bool:
    try:
        TrialRecord.model_validate_json(line)
    except ValidationError:
        return False
    return True
