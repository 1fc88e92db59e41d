"""Combines runs into a report, and checks that they are comparable."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from kvfw.analysis.names import labelled
from kvfw.analysis.results import Results, row_order, summarise
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.core.contracts.settings import flat_settings, setting_text
from kvfw.errors import RequestError

MAY_DIFFER: Final = frozenset({"compose", "amounts", "sinks", "recent", "compress_every"})
"""Settings that give other rows, not another experiment. All other settings must agree."""
TELLING: Final = ("model", "task", "question_aware")
"""Settings that explain a difference best, so they are named first."""


@dataclass(frozen=True)
class Source:
    """One run: folder name, ``config.json``'s settings and facts, trials, metrics, and problems reading them."""

    name: str
    settings: Mapping[str, JsonValue]
    facts: Mapping[str, JsonValue]
    records: tuple[TrialRecord, ...]
    metrics: tuple[MetricInfo, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The data of a report, from :func:`make_report` or put together from existing results.

    Attributes:
        results: of all runs together.
        records: the same trials, compositions labelled as in ``results``.
        sources: the runs.
        notes: caveats about the data.
    """

    results: Results
    records: tuple[TrialRecord, ...]
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()


def make_report(sources: Sequence[Source], references: Sequence[str] | None = None, *, resamples: int = 9999) -> Report:
    """Combines runs; rows that several of them hold are labelled with their run.

    Args:
        sources: at least one.
        references: compositions to compare with; None: ``full`` and the first composition.
        resamples: number of bootstrap samples.

    Raises:
        RequestError: no run, a run without trials, runs that cannot be compared, or a reference that is no row.
    """
    if not sources:
        raise RequestError("no run to report; name at least one run folder")
    for source in sources:
        if not source.records:
            why = f" ({source.problems[0]})" if source.problems else ""
            raise RequestError(f"{source.name} holds no trial that can be read{why}; run or resume it first")
    check_comparable(sources)
    names = unique_names([source.name for source in sources])
    shared = _shared_rows(sources)
    records: list[TrialRecord] = []
    order: list[RowKey] = []
    for name, source in zip(names, sources, strict=True):
        order += (_renamed(row, name, shared) for row in wanted_rows(source.settings))
        for record in source.records:
            compose = _renamed(record.key.row, name, shared).compose
            key = record.key.model_copy(update={"compose": compose})
            records.append(record if compose == record.key.compose else record.model_copy(update={"key": key}))
    present = tuple(dict.fromkeys(record.key.row for record in records))
    # Rows of one amount stay together, whichever run they come from.
    amounts = list(dict.fromkeys(row.amount for row in (*order, *present)))
    order = sorted(row_order(present, order), key=lambda row: amounts.index(row.amount))
    infos = {info.name: info for source in reversed(sources) for info in source.metrics}
    metrics = [infos[name] for name in dict.fromkeys(info.name for source in sources for info in source.metrics)]
    results = summarise(
        records,
        _settings(names, sources),
        metrics,
        order=order,
        references=None if references is None else [find_row(text, present, order) for text in references],
        resamples=resamples,
    )
    return Report(results, tuple(records), tuple(sources), tuple(_each_note(names, sources)))


def check_comparable(sources: Sequence[Source]) -> None:
    """Raises RequestError if a run's settings differ from the first run's, naming them with both values."""
    first, *others = sources
    old = dict(flat_settings(first.settings))
    for other in others:
        new = dict(flat_settings(other.settings))
        names = [name for name in dict.fromkeys([*TELLING, *old, *new]) if name.split(".")[0] not in MAY_DIFFER]
        texts = [(name, setting_text(old, name), setting_text(new, name)) for name in names]
        if differing := [f"{name}: {a} in {first.name}, {b} in {other.name}" for name, a, b in texts if a != b]:
            listed = "\n  ".join(differing)
            raise RequestError(
                f"{first.name} and {other.name} cannot be compared, they are different experiments; report them one by "
                f"one:\n  {listed}"
            )


def wanted_rows(settings: Mapping[str, JsonValue]) -> list[RowKey]:
    """The rows that the settings request, in that order; none if the settings do not say."""
    compose, amounts = settings.get("compose"), settings.get("amounts")
    if not isinstance(compose, list) or not isinstance(amounts, list):
        return []
    return [RowKey(str(text), str(amount)) for amount in amounts for text in compose]


def find_row(text: str, present: Sequence[RowKey], order: Sequence[RowKey] = ()) -> RowKey:
    """The first row of that composition, with or without its run's label. Raises RequestError if there is none."""
    rows = [*(row for row in order if row in present), *present]
    for row in rows:
        if row.compose == text or row.compose.startswith(f"{text} ["):
            return row
    known = ", ".join(dict.fromkeys(row.compose for row in rows))
    raise RequestError(f"reference {text!r} is no row of the report; rows: {known}")


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, numbered where they repeat."""
    count = Counter(names)
    return tuple(f"{name} #{names[: at + 1].count(name)}" if count[name] > 1 else name for at, name in enumerate(names))


def _shared_rows(sources: Sequence[Source]) -> frozenset[RowKey]:
    count = Counter(row for source in sources for row in {record.key.row for record in source.records})
    return frozenset(row for row, runs in count.items() if runs > 1)


def _renamed(row: RowKey, run: str, shared: frozenset[RowKey]) -> RowKey:
    return RowKey(labelled(row.compose, run), row.amount) if row in shared else row


def _settings(names: Sequence[str], sources: Sequence[Source]) -> dict[str, JsonValue]:
    """The settings of a single run; of several runs, the shared ones, with the rest by run under ``runs``."""
    if len(sources) == 1:
        return dict(sources[0].settings)
    common = {name: value for name, value in sources[0].settings.items() if name not in MAY_DIFFER}
    own: dict[str, JsonValue] = {
        run: {name: value for name, value in source.settings.items() if name in MAY_DIFFER}
        for run, source in zip(names, sources, strict=True)
    }
    return {**common, "runs": own}


def _each_note(names: Sequence[str], sources: Sequence[Source]) -> Iterator[str]:
    several = len(sources) > 1
    for name, source in zip(names, sources, strict=True):
        for problem in source.problems:
            yield f"{name}: {problem}" if several else problem
    if several:
        yield "Speeds of different runs were measured at different times and cannot be compared."
        for setting in ("sinks", "recent", "compress_every"):
            texts = [setting_text(source.settings, setting) for source in sources]
            if len(set(texts)) > 1:
                values = ", ".join(f"{text} in {name}" for name, text in zip(names, texts, strict=True))
                yield f"The runs differ in {setting}: {values}."
