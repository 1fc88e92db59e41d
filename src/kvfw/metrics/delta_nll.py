"""What a compressed cache costs on a text, in nats per token."""

import math
from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo


class DeltaNLL(MetricPart):
    """Mean negative log-likelihood of the full cache's response, minus the same over the full cache, nats per token.

    ``mean(NLL) - mean(NLL_full)`` at the tokens of ``ref_ppl``; with a text to follow, of that text: the logarithm of
    the ratio of two perplexities, paired by prompt. Below 0 where the compressed cache predicts the text better.

    Source: kvfw's own.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="delta_nll", title="ΔNLL", unit="nats", digits=4, higher_is_better=False
    )

    def measure(self, evidence: Evidence) -> Value:
        """Any number; 0 for the full cache."""
        tokens = evidence.reference.tokens
        own, full = evidence.engine.nll(tokens), evidence.reference_engine.nll(tokens)
        if not own:
            return Missing("the full cache's response has one token")
        value = math.fsum(own) / len(own) - math.fsum(full) / len(full)
        return value if math.isfinite(value) else Missing("a token has no finite likelihood")
