"""The folder of one experiment: opened for writing by one process, read by anybody."""

import contextlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from filelock import FileLock

from kvfw.core.contracts.records import SCHEMA, TrialRecord
from kvfw.errors import RequestError, StoreError
from kvfw.store.atomic import TEMPORARY_SUFFIX, cause, to_json, write_atomic
from kvfw.store.config import (
    CONFIG_NAME,
    JsonObject,
    RunConfig,
    as_json_object,
    differences,
    read_config,
    write_config,
)
from kvfw.store.lock import LOCK_NAME, hold
from kvfw.store.trials import TRIALS_NAME, TrialLog, mend_tail, read_trials


class LoadedRun(NamedTuple):
    """A run read from disk: configuration, records in file order, and what was wrong with the file."""

    config: RunConfig
    records: tuple[TrialRecord, ...]
    problems: tuple[str, ...]


def load_run(path: str | PathLike[str]) -> LoadedRun:
    """Read a run without locking or changing it; it may be in the middle of being written.

    Raises:
        RequestError: there is no run at this path.
        StoreError: files of it cannot be read.
    """
    folder = Path(path)
    config = read_config(folder) if folder.is_dir() else None
    if config is None:
        raise RequestError(f"{folder} holds no run: it has no {CONFIG_NAME}")
    return LoadedRun(config, *read_trials(folder / TRIALS_NAME))


class RunFolder:
    """A run folder held open for writing. Make it with :meth:`open`; use it as a context manager.

    Attributes:
        path: the folder.
        problems: what had to be mended when it was opened.
    """

    def __init__(self, path: Path, config: RunConfig, log: TrialLog, lock: FileLock, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        self._config = config
        self._log = log
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        settings: Mapping[str, object],
        *,
        resume: bool,
        facts: Mapping[str, object] | None = None,
    ) -> "RunFolder":
        """Start an experiment in a new or empty folder, or go on with the same one.

        Args:
            path: the folder; made if it is missing.
            settings: JSON values that decide whether trials are comparable; must be equal to go on.
            resume: allow a folder that already holds this experiment.
            facts: JSON values worth keeping that may differ: versions, hardware, time, given and defaulted
                options. On resume they are added beside those of the first session.

        Raises:
            RequestError: the folder holds this experiment and ``resume`` is False, holds another one (each
                differing setting is named), holds something else, or is being written by another process.
            StoreError: the folder cannot be made, read or written.
        """
        folder = Path(path)
        wanted = as_json_object(settings, "settings")
        circumstances = as_json_object(facts or {}, "facts")
        _refuse_foreign(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {folder}: {cause(error)}") from error
        lock = hold(folder)
        try:
            _remove_leftovers(folder)
            stored = read_config(folder)
            if stored is None:
                # Again, under the lock: whoever held it may have put something here.
                _refuse_foreign(folder)
                config = RunConfig(settings=wanted, facts=circumstances)
                write_config(folder, config)
            else:
                _refuse_other(folder, stored, wanted, resume)
                config = stored
                if circumstances:
                    config = stored.model_copy(update={"resumed": (*stored.resumed, circumstances)})
                    write_config(folder, config)
            problems = mend_tail(folder / TRIALS_NAME)
            return cls(folder, config, TrialLog(folder / TRIALS_NAME), lock, problems)
        except BaseException:
            lock.release()
            raise

    @property
    def config(self) -> RunConfig:
        return self._config

    def append(self, record: TrialRecord) -> None:
        """Record one finished trial; on return it survives a kill and a power cut.

        Raises:
            StoreError: it cannot be written; says what is safe and how to go on.
        """
        self._log.append(record)

    def records(self) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
        """All records in file order, and every problem: mended on opening, then lines that were skipped.

        Raises:
            StoreError: the file cannot be read.
        """
        records, problems = read_trials(self.path / TRIALS_NAME)
        return records, (*self.problems, *problems)

    def add_facts(self, facts: Mapping[str, object]) -> None:
        """Add to the facts of this experiment, e.g. telemetry known only later; equal names are replaced.

        Raises:
            RequestError: a value that JSON does not have.
            StoreError: ``config.json`` cannot be written.
        """
        merged = {**self._config.facts, **as_json_object(facts, "facts")}
        self._config = self._config.model_copy(update={"facts": merged})
        write_config(self.path, self._config)

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Replace a file of the folder (``"figures/recall.png"``) in one step; its path.

        Raises:
            StoreError: it cannot be written.
            ValueError: the name leads out of the folder.
        """
        if Path(name).is_absolute() or ".." in Path(name).parts or not Path(name).name:
            raise ValueError(f"{name!r} is no file name inside the run folder")
        target = self.path / name
        write_atomic(target, data)
        return target

    def write_text(self, name: str, text: str) -> Path:
        """As :meth:`write_bytes`, UTF-8."""
        return self.write_bytes(name, text.encode())

    def write_json(self, name: str, data: object) -> Path:
        """As :meth:`write_bytes`, strict JSON. Raises ValueError for NaN and infinity."""
        return self.write_text(name, to_json(data))

    def close(self) -> None:
        """Let go of the folder; more than once does no harm."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_foreign(folder: Path) -> None:
    """Raise RequestError if something is here that is neither a run nor an empty folder."""
    try:
        if folder.exists() and not folder.is_dir():
            raise RequestError(f"{folder} is a file; --out must name a folder")
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {cause(error)}") from error
    # A process killed before it wrote config.json leaves these behind; the folder still counts as empty.
    others = sorted(name for name in names if name != LOCK_NAME and not name.endswith(TEMPORARY_SUFFIX))
    if others and CONFIG_NAME not in names:
        raise RequestError(
            f"{folder} is not empty and holds no run ({others[0]} is there, {CONFIG_NAME} is not); choose another --out"
        )


def _refuse_other(folder: Path, stored: RunConfig, wanted: JsonObject, resume: bool) -> None:
    """Raise RequestError unless the folder holds the same experiment and may be gone on with."""
    if stored.schema_version != SCHEMA:
        raise RequestError(
            f"{folder} holds a run of an earlier kvfw (schema {stored.schema_version}, now {SCHEMA}), which can be "
            "reported (kvfw report) but not resumed; choose another --out"
        )
    if differing := differences(stored.settings, wanted):
        listed = "\n  ".join(differing)
        raise RequestError(
            f"{folder} holds an experiment with other settings; choose another --out or the same settings:\n  {listed}"
        )
    if not resume:
        raise RequestError(f"{folder} already holds this experiment; add --resume to finish it or choose another --out")


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            leftover.unlink()
