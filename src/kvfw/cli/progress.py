"""Shows the progress of an evaluation: a bar on a terminal, plain lines in a pipe."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kvfw.core.contracts.records import TrialRecord


class Shown:
    """Progress callbacks that count trials and remember the folder, for the message on an interruption."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.folder: Path | None = None
        self.total = self.done = 0
        self._asked_to_stop = False
        self._before: Any = None

    def note(self, text: str) -> None:
        """Prints a line."""
        self.console.print(f"note: {text}", markup=False, highlight=False)

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Remembers where the run is."""
        self.folder, self.total, self.done = folder, total, done

    def prompt(self, text: str) -> None:
        """Nothing by itself."""

    def trial(self, record: TrialRecord) -> None:
        """Counts; raises KeyboardInterrupt again if Python dropped that of a Ctrl-C because it struck in a callback."""
        self.done += 1
        if self._asked_to_stop:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing by itself."""

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = True
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


class Lines(Shown):
    """One line per trial."""

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Prints the number of trials."""
        super().begin(folder, total, done)
        self._print(f"{total} trials, {done} of them done; run folder {folder}")

    def trial(self, record: TrialRecord) -> None:
        """Prints the trial's first values."""
        self._print(f"[{self.done + 1}/{self.total}] {record.key}: {outcome(record)}")
        super().trial(record)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Shown):
    """A progress bar that names the current prompt."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("trials"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("loading", total=None)
        self.bar.start()

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Starts counting."""
        super().begin(folder, total, done)
        self.bar.update(self.task, total=total, completed=done)

    def prompt(self, text: str) -> None:
        """Shows the prompt."""
        self.bar.update(self.task, description=text)

    def trial(self, record: TrialRecord) -> None:
        """Advances."""
        self.bar.advance(self.task)
        super().trial(record)

    def close(self) -> None:
        """Removes the bar."""
        self.bar.stop()


def outcome(record: TrialRecord) -> str:
    """The first few numbers of a record."""
    shown = [f"{name} {value:.4g}" for name, value in record.metrics.items() if value is not None]
    return ", ".join(shown[:4])


def progress_for(stream: TextIO) -> Shown:
    """A bar if the stream is a terminal, else lines."""
    console = Console(file=stream)
    return Bars(console) if console.is_terminal else Lines(console)
