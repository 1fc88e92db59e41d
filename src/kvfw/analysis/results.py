"""Computes ``results.json`` from trial records: one row per composition and amount, every value with its errors."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, JsonValue

from kvfw.analysis import stats
from kvfw.analysis.compare import Comparison, compare_rows
from kvfw.analysis.names import is_full
from kvfw.analysis.schema_1 import results_2
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import SCHEMA, Facet, Frozen, MetricInfo, PromptKey, RowKey, TrialKey, TrialRecord
from kvfw.core.contracts.task import facet_text
from kvfw.errors import StoreError

SIZE: Final = "kv_mb"
"""The metric that gives size ratios."""
HELD, SLOTS = "held_ratio", "slots_per_head"
"""What records hold of the amount that came out."""
MOST_VALUES: Final = 20
"""Facets with more values than this are not tabulated."""


class FacetScore(Frozen):
    """The primary score over the ``n`` trials of one value of a facet that have a score.

    ``hits`` is None if some trial is neither hit nor miss.
    """

    mean: float
    hits: int | None = Field(ge=0)
    n: int = Field(ge=1)


class ResultRow(Frozen):
    """One composition at one amount.

    Attributes:
        compose, amount: as in :class:`~kvfw.core.contracts.records.TrialKey`.
        ratio: how many times smaller the middle becomes, mean over trials; None if unknown.
        n: trials recorded, with or without a value of each metric.
        metrics: by name, in table order.
        by_facet: the primary score by facet and the text of its value; only facets of 2 to 20 values.
        held_ratio: how many times smaller the middle became, over the compressed layers and their KV heads; like the
            next, a mean over trials and None in records that do not say.
        slots_per_head: slots of the whole prompt's cache, over all layers and KV heads.
        size_ratio: bytes of the full cache over bytes held, all layers, over the prompts that both rows answered.
        seconds: by phase, a mean over the trials that recorded it: all rows of a prompt share ``prefill`` and
            ``probe``; ``compress`` and ``decode`` are a row's own.
        reasons: why ``ratio`` is None; otherwise empty.
    """

    compose: str
    amount: str
    ratio: float | None
    n: int = Field(ge=1)
    metrics: dict[str, Summary]
    by_facet: dict[str, dict[str, FacetScore]]
    held_ratio: float | None = None
    slots_per_head: float | None = None
    size_ratio: float | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


class Results(Frozen):
    """The contents of ``results.json``.

    Attributes:
        config: the settings of the run.
        metrics: in table order.
        rows: ``full`` first.
        comparisons: of rows with reference rows; empty in the oldest files.
    """

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    config: dict[str, JsonValue]
    metrics: tuple[MetricInfo, ...]
    rows: tuple[ResultRow, ...]
    comparisons: tuple[Comparison, ...] = ()

    @classmethod
    def from_json(cls, data: str | bytes) -> "Results":
        """The results in a file of schema 1 or 2. Raises ValueError if it holds none."""
        try:
            parsed = json.loads(data)
            return cls.model_validate_json(json.dumps(results_2(parsed) if parsed["schema"] == 1 else parsed))
        except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise ValueError(f"no results: {error!r}") from None

    @property
    def primary(self) -> MetricInfo | None:
        """The score that comparisons and figures show: the one marked as primary, else the first metric."""
        return primary_of(self.metrics)

    @property
    def size_ratios(self) -> dict[RowKey, float]:
        """How many times smaller than ``full``'s the whole cache of each row is, where that is known."""
        return {RowKey(row.compose, row.amount): row.size_ratio for row in self.rows if row.size_ratio is not None}

    def to_json(self) -> str:
        """Strict, indented JSON ending in a newline. Raises ValueError for a NaN in ``config``."""
        data = self.model_dump(mode="json", by_alias=True)
        return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def summarise(
    records: Iterable[TrialRecord],
    settings: Mapping[str, object],
    metrics: Sequence[MetricInfo],
    *,
    order: Sequence[RowKey] = (),
    references: Sequence[RowKey] | None = None,
    resamples: int = 9999,
) -> Results:
    """Computes the results of an experiment, finished or not.

    Args:
        records: in any order, which matters only for rows not in ``order``.
        settings: JSON values, stored as ``config``.
        metrics: in table order. Metrics without any record are left out; a metric that only records name comes last,
            titled by its name.
        order: rows in the wanted order. ``full`` always comes first; rows not named here come last, as they appear.
        references: rows that every row is compared with, see :func:`~kvfw.analysis.compare.compare_rows`; None:
            ``full`` and the first composition.
        resamples: number of bootstrap samples.

    Raises:
        ValueError: a key occurs twice, a reference is no row, or ``settings`` are not strict JSON.
    """
    by_row: dict[RowKey, dict[TrialKey, TrialRecord]] = defaultdict(dict)
    for record in records:
        trials = by_row[record.key.row]
        if record.key in trials:
            raise ValueError(f"two records of one trial: {record.key}")
        trials[record.key] = record
    infos = _measured(metrics, [record for trials in by_row.values() for record in trials.values()])
    keys = row_order(by_row, order)
    trials_of = {key: sorted(by_row[key].values(), key=lambda trial: trial.order) for key in keys}
    everything = [trial for key in keys for trial in trials_of[key]]
    facets = facet_values(everything)
    primary = primary_of(infos)
    full = {trial.key.prompt: trial for trial in reversed(everything) if is_full(trial.key.compose)}
    config: dict[str, JsonValue] = json.loads(json.dumps(dict(settings), allow_nan=False))
    return Results(
        config=config,
        metrics=infos,
        rows=tuple(
            _row(key, trials_of[key], infos, _by_facet(trials_of[key], facets, primary), full, resamples)
            for key in keys
        ),
        comparisons=compare_rows(keys, everything, infos, references, resamples=resamples),
    )


def read_results(path: Path) -> Results | None:
    """A results file; None if missing or invalid, since the trials are what counts. StoreError if it cannot be read."""
    try:
        return Results.from_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def row_order(present: Iterable[RowKey], order: Sequence[RowKey] = ()) -> list[RowKey]:
    """The rows present, once each: ``full``, then as in ``order``, then as they first appear."""
    seen = dict.fromkeys(present)
    wanted = [key for key in order if key in seen]
    return sorted(dict.fromkeys([*wanted, *seen]), key=lambda key: not is_full(key.compose))


def primary_of(infos: Sequence[MetricInfo]) -> MetricInfo | None:
    """The score marked as primary, else the first metric; None if there are no metrics."""
    return next((info for info in infos if info.primary), next(iter(infos), None))


def facet_values(records: Iterable[TrialRecord]) -> dict[str, list[Facet]]:
    """Facets with 2 to 20 values, in display order, and their sorted values, numbers first."""
    found: dict[str, set[Facet]] = defaultdict(set)
    for record in records:
        for name, value in record.facets.items():
            found[name].add(value)
    return {
        name: sorted(values, key=lambda value: (isinstance(value, str), value))
        for name, values in found.items()
        if 2 <= len(values) <= MOST_VALUES
    }


def _measured(known: Sequence[MetricInfo], records: Sequence[TrialRecord]) -> tuple[MetricInfo, ...]:
    named = {name for record in records for name in record.metrics}
    unknown = sorted(named - {info.name for info in known})
    return (*(info for info in known if info.name in named), *(MetricInfo(name=name, title=name) for name in unknown))


def _row(
    key: RowKey,
    trials: Sequence[TrialRecord],
    infos: Sequence[MetricInfo],
    by_facet: dict[str, dict[str, FacetScore]],
    full: Mapping[PromptKey, TrialRecord],
    resamples: int,
) -> ResultRow:
    ratio = stats.mean([trial.ratio for trial in trials if trial.ratio is not None])
    return ResultRow(
        compose=key.compose,
        amount=key.amount,
        ratio=ratio.value,
        n=len(trials),
        metrics={info.name: _summary(info, trials, resamples) for info in infos},
        by_facet=by_facet,
        held_ratio=stats.mean([trial.extra[HELD] for trial in trials if HELD in trial.extra]).value,
        slots_per_head=stats.mean([trial.extra[SLOTS] for trial in trials if SLOTS in trial.extra]).value,
        size_ratio=_size_ratio(trials, full),
        seconds=_seconds(trials),
        reasons={} if ratio.reason is None else {"ratio": ratio.reason},
    )


def _size_ratio(trials: Sequence[TrialRecord], full: Mapping[PromptKey, TrialRecord]) -> float | None:
    """The full cache's bytes over those of a row, summed over the prompts for which both are known."""
    pairs = [
        (whole, held)
        for trial in trials
        if (other := full.get(trial.key.prompt)) is not None
        and other.prompt_sha256 == trial.prompt_sha256
        and (whole := other.metrics.get(SIZE))
        and (held := trial.metrics.get(SIZE))
    ]
    return math.fsum(whole for whole, _ in pairs) / math.fsum(held for _, held in pairs) if pairs else None


def _seconds(trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Mean seconds of each phase, over the trials that recorded it."""
    spent: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for phase, seconds in trial.seconds.items():
            spent[phase].append(seconds)
    return {phase: math.fsum(values) / len(values) for phase, values in spent.items()}


def _summary(info: MetricInfo, trials: Sequence[TrialRecord], resamples: int) -> Summary:
    values: dict[str, list[float]] = defaultdict(list)
    missing: Counter[str] = Counter()
    for trial in trials:
        value = trial.metrics.get(info.name)
        if value is not None:
            values[trial.group].append(value)
        else:
            missing[trial.reasons.get(info.name, "not measured in this trial")] += 1
    return stats.summarise_values(values, proportion=info.proportion, missing=missing, resamples=resamples)


def _by_facet(
    trials: Sequence[TrialRecord], facets: Mapping[str, Sequence[Facet]], primary: MetricInfo | None
) -> dict[str, dict[str, FacetScore]]:
    if primary is None:
        return {}
    scored = [(trial, value) for trial in trials if (value := trial.metrics.get(primary.name)) is not None]
    found = {}
    for name, values in facets.items():
        scores = {
            facet_text(value): _facet_score([score for trial, score in scored if trial.facets.get(name) == value])
            for value in values
        }
        if some := {text: score for text, score in scores.items() if score is not None}:
            found[name] = some
    return found


def _facet_score(values: Sequence[float]) -> FacetScore | None:
    mean = stats.mean(values).value
    if mean is None:
        return None
    hits = sum(value == 1.0 for value in values)
    return FacetScore(mean=mean, hits=hits if all(value in (0.0, 1.0) for value in values) else None, n=len(values))
