"""Similarity of hidden states."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvfw.core.contracts.metric import Evidence, Measured, MetricPart, Missing, Value
from kvfw.core.contracts.records import FULL, MetricInfo, PromptKey, TrialKey, TrialRecord, vector_of

ONE_TOKEN = Missing("a response of one token has no hidden state")


class HiddenCosine(MetricPart):
    """Cosine of the mean final hidden states of the response and of the full cache's response.

    Hidden states after the final norm at the inputs y1 ... y(T-1) of each own response over its own cache. Unrelated
    texts reach 0.82 to 0.95, because hidden states share a large common part; see ``hidden_cos_centred``.

    Source: the founding experiment.
    """

    info: ClassVar[MetricInfo] = MetricInfo(name="hidden_cos", title="Hidden cos", digits=4, higher_is_better=True)

    def measure(self, evidence: Evidence) -> Value:
        """-1 to 1, with the response's own mean hidden state."""
        own = evidence.engine.hidden(evidence.response.tokens)
        reference = evidence.reference_engine.hidden(evidence.reference.tokens)
        if not own or not reference:
            return ONE_TOKEN
        return Measured(cosine(own, reference), own)


class CentredHiddenCosine(MetricPart):
    """``hidden_cos`` with the mean state of the run's full-cache responses subtracted from both.

    ``cos(h - m, h_full - m)`` with ``m`` the mean of the run's ``h_full``. The part all responses share cancels, so
    unrelated responses score near 0. Needs at least two full-cache responses.

    Source: kvfw's own addition to ``hidden_cos``.
    """

    info: ClassVar[MetricInfo] = MetricInfo(
        name="hidden_cos_centred", title="Hidden cos, centred", digits=4, higher_is_better=True
    )

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        """-1 to 1 for every trial with a stored state."""
        name = HiddenCosine.info.name
        vectors = {record.key: vector_of(record.vectors[name]) for record in records if name in record.vectors}
        references: dict[PromptKey, tuple[float, ...]] = {
            key.prompt: vector for key, vector in vectors.items() if key.compose == FULL
        }
        if len(references) < 2:
            missing = Missing("the mean over full-cache responses needs two of them or more")
            return {record.key: missing for record in records}
        columns = zip(*references.values(), strict=True)
        centre = tuple(math.fsum(column) / len(references) for column in columns)
        values: dict[TrialKey, float | Missing] = {}
        for record in records:
            own, reference = vectors.get(record.key), references.get(record.key.prompt)
            if own is None or reference is None:
                values[record.key] = ONE_TOKEN
            else:
                values[record.key] = cosine(_minus(own, centre), _minus(reference, centre))
        return values


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Cosine of the angle between two vectors; 1 for two zero vectors, 0 for one."""
    norms = math.hypot(*a) * math.hypot(*b)
    if norms == 0.0:
        return float(math.hypot(*a) == math.hypot(*b))
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(a, b, strict=True)) / norms))


def _minus(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))
