"""How long a response follows the full cache's."""

from typing import ClassVar

from kvfw import Evidence, MetricInfo, MetricPart, Missing, Value


class SameStart(MetricPart):
    """Share of the full cache's response that is written alike before the first token that differs.

    ``m / n`` for the greatest ``m`` with ``y_1 ... y_m = r_1 ... r_m``, where the full cache's response ``r`` has ``n``
    tokens. The first token comes from the prompt's own logits, so in question-aware runs it always agrees.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="same_start", title="Same start", unit="%", digits=1, higher_is_better=True
    )

    def measure(self, evidence: Evidence) -> Value:
        """0 to 1."""
        ours, theirs = evidence.response.tokens, evidence.reference.tokens
        if not theirs:
            return Missing("the full cache's response is empty")
        same = 0
        while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
            same += 1
        return same / len(theirs)
