"""A plugin's metric cannot stop a run."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from kvfw.core.contracts.metric import Measured, MetricPart, Missing
from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.runner.plan.guarded import GuardedDerived, GuardedMetric, checked, complaints
from kvfw.runner.plan.metrics import guarded

WHO = "metric 'odd' of plugin 'stranger'"
INFO = MetricInfo(name="odd", title="Odd", unit="", digits=1, higher_is_better=True)
KEYS = [TrialKey(compose="full", amount="ratio=1", sample=sample) for sample in ("a", "b")]


class Raising(MetricPart):
    """Fails."""

    info: ClassVar[MetricInfo] = INFO

    def measure(self, evidence: Any) -> float:
        raise ZeroDivisionError("no evidence today")


class Late(MetricPart):
    """Fails over the whole run, or leaves trials out."""

    info: ClassVar[MetricInfo] = INFO
    fails: bool = False

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        if self.fails:
            raise KeyError("absent")
        return {records[0].key: 2.0}


def spec() -> PartSpec:
    return PartSpec(Kind.METRIC, "odd", "nowhere:Odd", "for a test", provider="stranger")


def records() -> list[Any]:
    class Only:
        def __init__(self, key: TrialKey) -> None:
            self.key = key

    return [Only(key) for key in KEYS]


def test_a_metric_that_raises_gives_a_reason() -> None:
    wrapped = guarded(Raising(), spec())
    assert isinstance(wrapped, GuardedMetric)
    assert wrapped.info is INFO
    evidence: Any = None
    assert wrapped.measure(evidence) == Missing(f"{WHO} failed: ZeroDivisionError: no evidence today")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (float("nan"), "gave nan"),
        (float("inf"), "gave inf"),
        ("0.5", "gave str where a number is expected"),
        (None, "gave NoneType where a number is expected"),
        (True, "gave bool where a number is expected"),
        (Measured(float("nan"), (1.0,)), "gave nan"),
    ],
)
def test_what_is_no_value_becomes_a_reason(value: object, seen: str) -> None:
    found = checked(value, WHO)
    assert isinstance(found, Missing)
    assert seen in found.reason


def test_what_is_a_value_stays_one() -> None:
    assert checked(1, WHO) == 1.0
    assert checked(Missing("why"), WHO) == Missing("why")
    assert checked(Measured(0.5, (1.0,)), WHO) == Measured(0.5, (1.0,))


def test_a_derived_metric_that_raises_or_leaves_trials_out_gives_reasons() -> None:
    wrapped = guarded(Late(), spec())
    assert isinstance(wrapped, GuardedDerived)
    assert wrapped.derive(records()) == {KEYS[0]: 2.0, KEYS[1]: Missing(f"{WHO} gave no value for this trial")}
    failing = guarded(Late(fails=True), spec())
    assert isinstance(failing, GuardedDerived)
    assert set(failing.derive(records()).values()) == {Missing(f"{WHO} failed: KeyError: 'absent'")}


def test_what_a_plugins_metric_did_wrong_is_said_once_with_the_number_of_trials() -> None:
    class Recorded:
        def __init__(self, reason: str) -> None:
            self.reasons = {"odd": reason} if reason else {}

    wrapped = guarded(Raising(), spec())
    said: list[Any] = [Recorded(reason) for reason in (f"{WHO} gave nan", f"{WHO} gave nan", "one token only", "")]
    assert complaints(said, [wrapped]) == (f"{WHO} gave nan (2 of 4 trials)",)
    # A metric of kvfw's own is not guarded, and a reason of its own is no complaint.
    assert complaints(said, [Raising()]) == ()
