"""Adds the derived metrics, which need all records of a run."""

from collections.abc import Sequence

from kvfw.core.contracts.metric import DerivedMetric, Missing
from kvfw.core.contracts.records import TrialRecord


def with_derived(records: Sequence[TrialRecord], metrics: Sequence[DerivedMetric]) -> tuple[TrialRecord, ...]:
    """The records with the derived metrics' values, or the reasons why they are missing."""
    values = {metric.info.name: metric.derive(records) for metric in metrics}
    return tuple(_with(record, {name: found[record.key] for name, found in values.items()}) for record in records)


def _with(record: TrialRecord, derived: dict[str, float | Missing]) -> TrialRecord:
    metrics, reasons = dict(record.metrics), dict(record.reasons)
    for name, value in derived.items():
        if isinstance(value, Missing):
            metrics[name], reasons[name] = None, value.reason
        else:
            metrics[name] = value
    return record.model_copy(update={"metrics": metrics, "reasons": reasons})
