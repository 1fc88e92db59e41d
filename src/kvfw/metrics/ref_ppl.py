"""Reference perplexity."""

from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Value
from kvfw.core.contracts.records import MetricInfo
from kvfw.core.ops.perplexity import perplexity


class RefPPL(MetricPart):
    """Perplexity of the full cache's own greedy response, teacher-forced over the compressed cache.

    ``exp(mean NLL of tokens 2 ... T)``, end token included. Token 1 comes from the prompt's uncompressed logits and
    says nothing about the compression. Unlike the perplexity of a method's own text it cannot be flattered by
    repetitive output: every method is asked about the same text. Question-agnostic: tokens 1 ... T.

    Source: the founding experiment. Rows are compared on the mean NLL, and the perplexities averaged over trials.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="ref_ppl", title="Ref PPL", digits=3, higher_is_better=False)

    def measure(self, evidence: Evidence) -> Value:
        """At least 1."""
        return perplexity(evidence.engine.nll(evidence.reference.tokens), "the full cache's response has one token")
