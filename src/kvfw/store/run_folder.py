"""The folder of one experiment: one process at a time writes to it, any number may read."""

import contextlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from kvfw.core.contracts.records import SCHEMA, TrialRecord
from kvfw.errors import RequestError, StoreError
from kvfw.store.atomic import TEMPORARY_SUFFIX, cause, write_atomic
from kvfw.store.config import CONFIG_NAME, JsonObject, RunConfig, as_json_object, differences, read_config, write_config
from kvfw.store.lock import LOCK_NAME, hold
from kvfw.store.trials import TRIALS_NAME, TrialLog, mend_tail, read_trials


class LoadedRun(NamedTuple):
    """A run read from disk: configuration, records in file order, and problems found in the file."""

    config: RunConfig
    records: tuple[TrialRecord, ...]
    problems: tuple[str, ...]


def load_run(path: str | PathLike[str]) -> LoadedRun:
    """Reads a run, even while it is being written, without locking or changing it.

    Raises:
        RequestError: there is no run at this path.
        StoreError: its files cannot be read.
    """
    folder = Path(path)
    config = read_config(folder) if folder.is_dir() else None
    if config is None:
        raise RequestError(f"{folder} holds no run: it has no {CONFIG_NAME}")
    return LoadedRun(config, *read_trials(folder / TRIALS_NAME))


class RunFolder:
    """A run folder held open for writing. Create it with :meth:`open`; use it as a context manager.

    Attributes:
        path: the folder.
        problems: damage repaired when it was opened.
    """

    def __init__(self, path: Path, config: RunConfig, log: TrialLog, lock: FileLock, problems: tuple[str, ...]) -> None:
        self.path, self.problems = path, problems
        self._config, self._log, self._lock = config, log, lock

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        settings: Mapping[str, object],
        *,
        resume: bool,
        facts: Mapping[str, object] | None = None,
    ) -> "RunFolder":
        """Starts an experiment in a new or empty folder, or resumes the one it holds.

        Args:
            path: the folder, created if missing.
            settings: JSON values that decide whether trials are comparable; on resume they must be equal.
            resume: allow a folder that already holds this experiment.
            facts: JSON values that may differ between sessions: versions, hardware, time, given and defaulted options.
                On resume they are stored beside those of the first session.

        Raises:
            RequestError: the folder holds this experiment and ``resume`` is False, holds another one (each differing
                setting is named) or other files, or another process is writing to it.
            StoreError: the folder cannot be created, read or written.
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
                # Again, now under the lock: its last holder may have written files here.
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
        """Records one finished trial, durably: see :meth:`TrialLog.append`."""
        self._log.append(record)

    def records(self) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
        """All records in file order; problems repaired on opening, then skipped lines. StoreError if unreadable."""
        records, problems = read_trials(self.path / TRIALS_NAME)
        return records, (*self.problems, *problems)

    def add_facts(self, facts: Mapping[str, object]) -> None:
        """Adds facts that become known during the run, e.g. telemetry, replacing those of the same names.

        Raises:
            RequestError: a value JSON does not have.
            StoreError: ``config.json`` cannot be written.
        """
        merged = {**self._config.facts, **as_json_object(facts, "facts")}
        self._config = self._config.model_copy(update={"facts": merged})
        write_config(self.path, self._config)

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Replaces a file of the folder, e.g. ``"figures/recall.png"``, in one step and returns its path.

        Raises:
            StoreError: it cannot be written.
            ValueError: the name points outside the folder.
        """
        if Path(name).is_absolute() or ".." in Path(name).parts or not Path(name).name:
            raise ValueError(f"{name!r} is no file name inside the run folder")
        target = self.path / name
        write_atomic(target, data)
        return target

    def write_text(self, name: str, text: str) -> Path:
        """As :meth:`write_bytes`, UTF-8."""
        return self.write_bytes(name, text.encode())

    def close(self) -> None:
        """Releases the folder. Safe to call twice."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _refuse_foreign(folder: Path) -> None:
    """Raises RequestError unless the path is free, an empty folder or a run."""
    try:
        if folder.exists() and not folder.is_dir():
            raise RequestError(f"{folder} is a file; --out must name a folder")
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {cause(error)}") from error
    # A process killed before writing config.json leaves these two; the folder still counts as empty.
    others = sorted(name for name in names if name != LOCK_NAME and not name.endswith(TEMPORARY_SUFFIX))
    if others and CONFIG_NAME not in names:
        raise RequestError(
            f"{folder} is not empty and holds no run ({others[0]} is there, {CONFIG_NAME} is not); choose another --out"
        )


def _refuse_other(folder: Path, stored: RunConfig, wanted: JsonObject, resume: bool) -> None:
    """Raises RequestError unless the folder holds the same experiment and it may be resumed."""
    if stored.schema_version != SCHEMA:
        raise RequestError(
            f"{folder} holds a run of an earlier kvfw (schema {stored.schema_version}, now {SCHEMA}), which can be "
            "reported (kvfw report) but not resumed; choose another --out"
        )
    if differing := differences(stored.settings, wanted):
        if len(differing) == 1 and differing[0].startswith("prompts_sha256:"):
            differing += (
                "It covers prompts, references and response limits, which the tokenizer, the task and the version of "
                "kvfw decide. The trials there are kept; kvfw report shows them.",
            )
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
