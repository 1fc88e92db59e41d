"""Next-token distributions over a compressed cache against those over the full cache."""

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from kvfw.core.contracts.metric import Evidence, Measured, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo

ONE_TOKEN: Final = Missing("the full cache's response has one token")


class KL(MetricPart):
    """Mean ``KL(full || compressed)`` of the next-token distributions along the full cache's own response, nats.

    ``sum_v p_full(v) (log p_full(v) - log p(v))`` over the whole vocabulary, at the tokens ``ref_ppl`` looks at: 2...T,
    question-agnostic 1...T; with a text to follow, along that text. It needs no capable model and no reference, and
    sees a shift that changes no token. The record keeps the divergence of every token.

    Source: Kullback and Leibler 1951, On Information and Sufficiency.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="kl", title="KL", unit="nats", digits=4, higher_is_better=False)

    def measure(self, evidence: Evidence) -> Value:
        """At least 0, with the divergence of each token."""
        return _mean(evidence.engine.shift(evidence.reference.tokens).kl)


class Agreement(MetricPart):
    """Share of tokens at which the compressed and the full cache find the same next token most likely.

    Teacher-forced along the full cache's own response, or the text to follow, at the tokens of ``kl``: one wrong
    token does not spoil those after it. The record keeps 1 or 0 for every token, from which agreement by position
    follows.

    Source: kvfw's own.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="agreement", title="Agreement", unit="%", digits=1, higher_is_better=True
    )

    def measure(self, evidence: Evidence) -> Value:
        """0 to 1, with 1 or 0 for each token."""
        return _mean([float(same) for same in evidence.engine.shift(evidence.reference.tokens).same])


def _mean(values: Sequence[float]) -> Value:
    if not values:
        return ONE_TOKEN
    if not all(map(math.isfinite, values)):
        return Missing("a token has no finite likelihood")
    return Measured(math.fsum(values) / len(values), tuple(values))
