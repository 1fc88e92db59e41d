"""Metrics: of one trial, with a vector, and of a whole run."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvfw import DerivedMetric, Evidence, Measured, Metric, MetricInfo, MetricPart, Missing, TrialKey, TrialRecord


class Words(MetricPart):
    info: ClassVar[MetricInfo] = MetricInfo(name="words", title="Words", digits=0)

    def measure(self, evidence: Evidence) -> float | Missing:
        words = evidence.response.text.split()
        return float(len(words)) if words else Missing("the response is empty")


class WithAVector(MetricPart):
    info: ClassVar[MetricInfo] = MetricInfo(name="with_a_vector", title="V", unit="%", higher_is_better=True)

    def measure(self, evidence: Evidence) -> Measured:
        return Measured(value=1.0, vector=evidence.engine.hidden(evidence.response.tokens))


class Longest(MetricPart):
    info: ClassVar[MetricInfo] = MetricInfo(name="longest", title="Longest")

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        longest = max((len(record.response) for record in records), default=0)
        return {record.key: len(record.response) / longest if longest else Missing("empty") for record in records}


words: Metric = Words()
vector: Metric = WithAVector()
longest: DerivedMetric = Longest()
