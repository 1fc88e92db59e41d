"""Wraps plugin metrics so that they cannot stop a run: any failure becomes a missing value with a reason."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvfw.core.contracts.metric import DerivedMetric, Evidence, Measured, Metric, Missing, Value
from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord


@dataclass(frozen=True)
class GuardedMetric:
    """A plugin's metric ``inner`` with its ``info``; reasons call it ``who``. Every run measures it, wanted or not."""

    inner: Metric
    info: MetricInfo
    who: str

    def measure(self, evidence: Evidence) -> Value:
        """The metric's value, or why there is none."""
        try:
            return checked(self.inner.measure(evidence), self.who)
        except Exception as error:
            return failure(self.who, error)


@dataclass(frozen=True)
class GuardedDerived:
    """As :class:`GuardedMetric`, for a derived metric."""

    inner: DerivedMetric
    info: MetricInfo
    who: str

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        """The metric's values, with a reason for every trial it leaves out."""
        try:
            found = dict(self.inner.derive(records))
        except Exception as error:
            return {record.key: failure(self.who, error) for record in records}
        values: dict[TrialKey, float | Missing] = {}
        for record in records:
            value = checked(found.get(record.key, Missing(f"{self.who} gave no value for this trial")), self.who)
            values[record.key] = value.value if isinstance(value, Measured) else value
        return values


def complaints(records: Sequence[TrialRecord], metrics: Sequence[object]) -> tuple[str, ...]:
    """One line per reason that guarded metrics gave, with the number of trials it applies to."""
    guards = [metric for metric in metrics if isinstance(metric, GuardedMetric | GuardedDerived)]
    reasons = Counter(
        reason
        for record in records
        for guard in guards
        if (reason := record.reasons.get(guard.info.name, "")).startswith(guard.who)
    )
    return tuple(f"{reason} ({count} of {len(records)} trials)" for reason, count in reasons.items())


def checked(value: object, who: str) -> Value:
    """The value if valid (a finite number, alone or with its vector, or a reason), else the reason why not."""
    number = value.value if isinstance(value, Measured) else value
    if isinstance(number, Missing):
        return number
    if isinstance(number, bool) or not isinstance(number, int | float):
        return Missing(f"{who} gave {type(number).__name__} where a number is expected")
    if not math.isfinite(number):
        return Missing(f"{who} gave {number}; a value that does not exist has a reason")
    return value if isinstance(value, Measured) else float(number)


def failure(who: str, error: Exception) -> Missing:
    """The missing value that an exception turns into."""
    return Missing(f"{who} failed: {type(error).__name__}: {error}")
