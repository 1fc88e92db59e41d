"""Shows how an evaluation goes on: a bar on a terminal, plain lines in a pipe."""

from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kvfw.core.records import TrialRecord


class Shown:
    """Counts trials and remembers the folder, for the message on an interruption."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.folder: Path | None = None
        self.total = self.done = 0

    def note(self, text: str) -> None:
        """Prints a line."""
        self.console.print(f"note: {text}", markup=False, highlight=False)

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Remembers where the run is."""
        self.folder, self.total, self.done = folder, total, done

    def prompt(self, text: str) -> None:
        """Nothing by itself."""

    def trial(self, record: TrialRecord) -> None:
        """Counts."""
        self.done += 1

    def close(self) -> None:
        """Nothing by itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lines(Shown):
    """One line per trial."""

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Says how much there is to do."""
        super().begin(folder, total, done)
        self._print(f"{total} trials, {done} of them done; run folder {folder}")

    def trial(self, record: TrialRecord) -> None:
        """Says what was measured."""
        super().trial(record)
        self._print(f"[{self.done}/{self.total}] {record.key}: {outcome(record)}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Shown):
    """A bar with the prompt at hand."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Bar(
            TextColumn("{task.description}"),
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
        super().trial(record)
        self.bar.advance(self.task)

    def close(self) -> None:
        """Removes the bar."""
        self.bar.stop()


def outcome(record: TrialRecord) -> str:
    """The first few numbers of a record."""
    shown = [f"{name} {value:.4g}" for name, value in record.metrics.items() if value is not None]
    return ", ".join(shown[:4])


def progress_for(stream: TextIO) -> Shown:
    """What suits the stream."""
    console = Console(file=stream)
    return Bars(console) if console.is_terminal else Lines(console)
