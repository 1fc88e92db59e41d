"""Needle recall."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Value
from kvfw.core.contracts.records import MetricInfo


class Recall(MetricPart):
    """1 if the task calls the response right, else 0.

    For the needle task: the code occurs, case-sensitively, in what the model itself wrote; a begun answer does not
    count.

    Source: Kamradt 2023, Needle In A Haystack.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="recall", title="Recall", unit="%", proportion=True, digits=1, higher_is_better=True
    )

    def measure(self, evidence: Evidence) -> Value:
        """0 or 1."""
        return float(evidence.recalled)
