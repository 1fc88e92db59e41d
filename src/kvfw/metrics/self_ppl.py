"""Perplexity of a method's own response."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo
from kvfw.core.ops.perplexity import perplexity


class SelfPPL(MetricPart):
    """Perplexity of the method's own greedy response over its own cache: ``exp(mean NLL)``.

    It flatters degenerate text: a model that repeats itself is never surprised. It is shown to make that visible; judge
    a method by ``ref_ppl``.

    Source: the founding experiment.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="self_ppl", title="Self PPL", digits=3)

    def measure(self, evidence: Evidence) -> Value:
        """At least 1."""
        if evidence.turn.follow_ids:
            return Missing("the response was fed to the model, which wrote none")
        return perplexity(evidence.engine.nll(evidence.response.tokens), "the response has one token")
