"""Perplexity of a method's own response."""

import math
from typing import ClassVar

from kvfw.core.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.records import MetricInfo


class SelfPPL(MetricPart):
    """Perplexity of the method's own greedy response over its own cache: ``exp(mean NLL)``.

    It flatters degenerate text: a model that repeats itself is never surprised. Shown for that lesson; judge a method
    by ``ref_ppl``.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="self_ppl", title="Self PPL", digits=3)

    def measure(self, evidence: Evidence) -> Value:
        """At least 1."""
        nll = evidence.engine.nll(evidence.response.tokens)
        if not nll:
            return Missing("the response has one token")
        return math.exp(math.fsum(nll) / len(nll))
