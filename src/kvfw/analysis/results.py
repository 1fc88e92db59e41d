"""From trial records to ``results.json``: one row per composition and amount, every value with its errors."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from kvfw.analysis import stats
from kvfw.analysis.compare import Comparison, compare_rows
from kvfw.analysis.names import is_full
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import SCHEMA, Frozen, MetricInfo, RowKey, RunKey, TrialKey, TrialRecord
from kvfw.errors import StoreError

RECALL = "recall"


class DepthHits(Frozen):
    """Hits among the trials of one depth that have a value."""

    hits: int = Field(ge=0)
    n: int = Field(ge=1)


class ResultRow(Frozen):
    """One composition at one amount.

    Attributes:
        compose, amount: as in :class:`~kvfw.core.contracts.records.TrialKey`.
        ratio: how many times smaller the middle becomes, mean over trials; None if unknown.
        n: trials recorded, whether or not each metric has a value in all of them.
        metrics: by name, in table order.
        recall_by_depth: by depth in percent; empty where recall was not measured as hit or miss.
        reasons: why ``ratio`` is None; otherwise empty.
    """

    compose: str
    amount: str
    ratio: float | None
    n: int = Field(ge=1)
    metrics: dict[str, Summary]
    recall_by_depth: dict[str, DepthHits]
    reasons: dict[str, str] = Field(default_factory=dict)


class Results(Frozen):
    """What ``results.json`` holds.

    Attributes:
        config: the settings of the run.
        metrics: what is known of them, in table order.
        rows: ``full`` first.
        comparisons: of rows with reference rows; empty in files written before there were any.
    """

    schema_version: Literal[1] = Field(default=SCHEMA, alias="schema")
    config: dict[str, JsonValue]
    metrics: tuple[MetricInfo, ...]
    rows: tuple[ResultRow, ...]
    comparisons: tuple[Comparison, ...] = ()

    def to_json(self) -> str:
        """Strict JSON, indented, ending in a newline. Raises ValueError for a NaN in ``config``."""
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
    seed: int = 0,
) -> Results:
    """Compute the results of an experiment, finished or not.

    Args:
        records: in any order; they decide nothing but the order of rows, and that only beyond ``order``.
        settings: JSON values, repeated as ``config``.
        metrics: what is known of the metrics, in table order. Those that no record names are left out; one
            that a record names and this list does not comes last, under its own name.
        order: rows in the wanted order. ``full`` always comes first, rows not named here
            last, as they appear.
        references: rows that every row is compared with, see :func:`~kvfw.analysis.compare.compare_rows`; None is
            ``full`` and the first composition.
        resamples, seed: of the bootstrap.

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
    trials_of = {key: [by_row[key][trial] for trial in sorted(by_row[key])] for key in keys}
    everything = [trial for key in keys for trial in trials_of[key]]
    config: dict[str, JsonValue] = json.loads(json.dumps(dict(settings), allow_nan=False))
    return Results(
        config=config,
        metrics=infos,
        rows=tuple(_row(key, trials_of[key], infos, resamples, seed) for key in keys),
        comparisons=compare_rows(keys, everything, infos, references, resamples=resamples, seed=seed),
    )


def read_results(path: Path) -> Results | None:
    """A results file; None if there is none, or none that can be understood: trials are what counts.

    Raises:
        StoreError: it is there and cannot be read.
    """
    try:
        return Results.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def row_order(present: Iterable[RowKey], order: Sequence[RowKey] = ()) -> list[RowKey]:
    """Rows that are present, once each: ``full``, then as in ``order``, then as they first appear."""
    seen = dict.fromkeys(present)
    wanted = [key for key in dict.fromkeys(order) if key in seen]
    return sorted(dict.fromkeys([*wanted, *seen]), key=lambda key: not is_full(key.compose))


def depth_text(depth: float) -> str:
    """A depth in percent without a needless decimal: 10.0 is "10", 12.5 is "12.5"."""
    return str(int(depth)) if depth.is_integer() else repr(depth)


def _measured(known: Sequence[MetricInfo], records: Sequence[TrialRecord]) -> tuple[MetricInfo, ...]:
    named = {name for record in records for name in record.metrics}
    unknown = sorted(named - {info.name for info in known})
    return (
        *(info for info in known if info.name in named),
        *(MetricInfo(name=name, title=name) for name in unknown),
    )


def _row(
    key: RowKey, trials: Sequence[TrialRecord], infos: Sequence[MetricInfo], resamples: int, seed: int
) -> ResultRow:
    ratio = stats.mean([trial.ratio for trial in trials if trial.ratio is not None])
    return ResultRow(
        compose=key.compose,
        amount=key.amount,
        ratio=ratio.value,
        n=len(trials),
        metrics={info.name: _summary(info, trials, resamples, seed) for info in infos},
        recall_by_depth=_recall_by_depth(trials),
        reasons={} if ratio.reason is None else {"ratio": ratio.reason},
    )


def _summary(info: MetricInfo, trials: Sequence[TrialRecord], resamples: int, seed: int) -> Summary:
    values: dict[RunKey, list[float]] = defaultdict(list)
    missing: Counter[str] = Counter()
    for trial in trials:
        value = trial.metrics.get(info.name)
        if value is not None:
            values[trial.key.run].append(value)
        else:
            missing[trial.reasons.get(info.name, "not measured in this trial")] += 1
    return stats.summarise_values(values, proportion=info.proportion, missing=missing, resamples=resamples, seed=seed)


def _recall_by_depth(trials: Sequence[TrialRecord]) -> dict[str, DepthHits]:
    found: dict[float, list[float]] = defaultdict(list)
    for trial in trials:
        value = trial.metrics.get(RECALL)
        if value is not None:
            found[trial.key.depth].append(value)
    if any(value not in (0.0, 1.0) for values in found.values() for value in values):
        return {}
    return {
        depth_text(depth): DepthHits(hits=sum(value == 1.0 for value in found[depth]), n=len(found[depth]))
        for depth in sorted(found)
    }
