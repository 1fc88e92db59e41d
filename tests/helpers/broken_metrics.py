"""Metrics of a stranger, each broken in one way; and a model that is none."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import ClassVar

from helpers import sound_parts as sound
from kvfw.core.contracts.metric import Evidence, MetricPart, Missing, Value
from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord


class Misnamed(sound.Words):
    """Registered under another name than its own."""


class Undefined(MetricPart):
    """Divides by nothing."""

    info: ClassVar[MetricInfo] = MetricInfo(name="undefined", title="Undefined")

    def measure(self, evidence: Evidence) -> Value:
        nll = evidence.engine.nll(evidence.response.tokens)
        return sum(nll) / len(nll) if nll else float("nan")


_calls = itertools.count(1)


class Counting(MetricPart):
    """Another number every time."""

    info: ClassVar[MetricInfo] = MetricInfo(name="counting", title="Counting")

    def measure(self, evidence: Evidence) -> Value:
        return float(next(_calls))


class Zero(MetricPart):
    """A mean over nothing is 0."""

    info: ClassVar[MetricInfo] = MetricInfo(name="zero", title="Zero")

    def measure(self, evidence: Evidence) -> Value:
        return float(len(evidence.response.text.split()))


class Partial(sound.Longest):
    """Answers for compressed trials only."""

    info: ClassVar[MetricInfo] = MetricInfo(name="partial", title="Partial")

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        return {key: value for key, value in super().derive(records).items() if key.compose != "full"}


class Sorting(MetricPart):
    """Sorts the slots it was shown."""

    info: ClassVar[MetricInfo] = MetricInfo(name="sorting", title="Sorting")

    def measure(self, evidence: Evidence) -> Value:
        for state in evidence.states.values():
            state.values.copy_(state.values.sort(dim=2).values)
        return 1.0


#: What stands behind the name of a model that cannot be called.
NO_FUNCTION = "/models/smollm2"
