"""Decode speed."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo


class TokensPerSecond(MetricPart):
    """Decode steps per second at batch 1: 16 steps after 2 warm-up steps, in a separate pass.

    Measured only in the first sample of each stratum (for ``niah``: of each length). Wall-clock times depend on the
    machine and the moment: compare rows within one run, never across runs.

    Source: the founding experiment.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="tok_s", title="Tok/s", unit="1/s", digits=1, higher_is_better=True)

    def measure(self, evidence: Evidence) -> Value:
        """Tokens per second."""
        if not evidence.timed:
            return Missing("timed in the first sample of each stratum only")
        return evidence.engine.tokens_per_second()
