"""Metrics with one fault each."""

from typing import ClassVar

from kvfw import DerivedMetric, Evidence, Metric, MetricInfo, MetricPart, Missing, Part

INFO = MetricInfo(name="a", title="A", higher="yes")  # E: Unexpected keyword argument "higher" for "MetricInfo"


class WithoutInfo(MetricPart):
    def measure(self, evidence: Evidence) -> float:
        return 1.0


class PlainPart(Part):
    def measure(self, evidence: Evidence) -> float:
        return 1.0


class InfoIsAText(MetricPart):
    info: ClassVar[str] = "words"  # E: defined the type as "MetricInfo"

    def measure(self, evidence: Evidence) -> float:
        return 1.0


class NoneForNothing(MetricPart):
    info: ClassVar[MetricInfo] = INFO

    def measure(self, evidence: Evidence) -> float | None:
        return None


class GivesNoReason(MetricPart):
    info: ClassVar[MetricInfo] = INFO

    def measure(self, evidence: Evidence) -> float | Missing:
        return Missing()  # E: Missing positional argument "reason" in call to "Missing"


class DerivesAList(MetricPart):
    info: ClassVar[MetricInfo] = INFO

    def derive(self, records: list[str]) -> list[float]:
        return [1.0]


without: Metric = WithoutInfo()  # E: Cannot instantiate abstract class "WithoutInfo" # E: Incompatible types
plain: Metric = PlainPart()  # E: Incompatible types # N: is missing following "Metric" protocol member # N: info
none: Metric = NoneForNothing()  # E: Incompatible types # N: measure(self, evidence: Evidence) -> float | None
listed: DerivedMetric = DerivesAList()  # E: Incompatible types # N: -> Mapping[TrialKey, float | Missing]
