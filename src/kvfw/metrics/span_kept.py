"""How much of what the answer needs the compressed cache still holds exactly."""

from functools import reduce
from operator import or_
from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo


class SpanKept(MetricPart):
    """Share of the tokens in the sample's spans that are kept exactly, mean over layers and KV heads.

    A token counts if a slot of mass 1 has its position. The metric separates keeping from using: a cache may hold all
    the answer needs and the model may still not find it.

    Source: kvfw's own addition to the founding experiment.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="span_kept", title="Span kept", unit="%", digits=1, higher_is_better=True
    )

    def measure(self, evidence: Evidence) -> Value:
        """0 to 1."""
        spans = [span for span in evidence.sample.spans if len(span)]
        if not evidence.states or not spans:
            return Missing("no compressible layer" if not evidence.states else "the sample has no spans")
        if not evidence.positions_kept:
            return Missing("keys were re-rotated, so kept tokens cannot be told by position")
        tokens, shares = len({token for span in spans for token in span}), []
        for state in evidence.states.values():
            # Merged slots inside a span have mass above 1; exact slots have whole positions, no two the same.
            inside = reduce(or_, ((state.positions >= span.start) & (state.positions < span.stop) for span in spans))
            kept = (inside & (state.mass == 1)).sum(-1)
            shares.append(float(kept.float().mean()) / tokens)
        return sum(shares) / len(shares)
