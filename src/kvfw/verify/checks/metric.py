"""What holds of a metric: a number or a reason, never something in between."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

import torch

from kvfw.core.contracts.metric import DerivedMetric, Evidence, Measured, Metric, Missing, Value
from kvfw.core.contracts.records import MetricInfo, TrialRecord
from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, NotApplicable, Verdict
from kvfw.verify.instruments.evidence import nothing, records, scenarios
from kvfw.verify.instruments.states import parts_of

METRICS = frozenset({Kind.METRIC})


def info(subject: Subject) -> Verdict:
    """The metric's own description, and the name it is registered under."""
    found = getattr(subject.part, "info", None)
    if not isinstance(found, MetricInfo):
        return Failed("a class variable `info` that is a kvfw.MetricInfo", type(found).__name__)
    if found.name != subject.spec.name:
        return Failed(f"info.name is the registered name, {subject.spec.name!r}", repr(found.name))
    return PASSED


def _runs(subject: Subject) -> Mapping[str, list[TrialRecord]]:
    """Runs by what is special about them, for metrics that need all records."""
    names = tuple(spec.name for spec in subject.registry.of_kind(Kind.METRIC) if spec.name != subject.spec.name)
    return {
        "an ordinary run": records(names),
        "a run of one prompt": records(names, seeds=1),
        "a run without stored vectors": records(names, vectors=False),
        "a run without values": records((), vectors=False),
    }


def _answers(subject: Subject) -> Iterator[tuple[str, Callable[[], list[Value]]]]:
    """What to ask, by case."""
    metric = subject.metric
    if isinstance(metric, DerivedMetric):
        for what, run in _runs(subject).items():
            yield what, partial(_derived, metric, run)
    else:
        for what, evidence in scenarios().items():
            yield what, partial(_measured, metric, evidence)


def _derived(metric: DerivedMetric, run: Sequence[TrialRecord]) -> list[Value]:
    return list(metric.derive(run).values())


def _measured(metric: Metric, evidence: Evidence) -> list[Value]:
    return [metric.measure(evidence)]


def _fault(value: object) -> str:
    """What is wrong with a value; empty text where nothing is."""
    if isinstance(value, Missing):
        return "" if value.reason.strip() else "Missing without a reason"
    number = value.value if isinstance(value, Measured) else value
    if isinstance(number, bool) or not isinstance(number, float | int):
        return f"{type(number).__name__} {number!r}"
    if not math.isfinite(number):
        return f"{number}"
    if isinstance(value, Measured) and not (value.vector and all(map(math.isfinite, value.vector))):
        return "a vector that is empty or not finite"
    return ""


def values(subject: Subject) -> Verdict:
    """Every made-up trial, one-token responses and the baseline against itself among them."""
    for what, ask in _answers(subject):
        for value in ask():
            fault = _fault(value)
            if fault:
                return Failed("a finite number, or Missing with a reason", f"{fault} for {what}")
    return PASSED


def deterministic(subject: Subject) -> Verdict:
    """Asked twice."""
    for what, ask in _answers(subject):
        first, second = ask(), ask()
        if first != second:
            return Failed("the same answer twice", f"{first} and {second} for {what}")
    return PASSED


def no_bare_zero(subject: Subject) -> Verdict:
    """Where there is nothing to measure, 0 would be taken for a result. A proportion counts hits: 0 is one."""
    metric = subject.metric
    if metric.info.proportion:
        return PASSED
    seen: list[Value] = []
    if isinstance(metric, DerivedMetric):
        seen.extend(metric.derive(_runs(subject)["a run without values"]).values())
    else:
        seen.append(metric.measure(nothing()))
    bare = [value for value in seen if not isinstance(value, Missing) and value == 0]
    return Failed("Missing with a reason where there is nothing to measure", "0") if bare else PASSED


def every_record(subject: Subject) -> Verdict:
    """A derived metric answers for every trial and for no other."""
    metric = subject.metric
    if not isinstance(metric, DerivedMetric):
        return NotApplicable("it measures each trial by itself")
    for what, run in _runs(subject).items():
        keys = {record.key for record in run}
        seen = set(metric.derive(run))
        if seen != keys:
            return Failed(f"an answer for each of {len(keys)} trials", f"{len(seen & keys)} for {what}")
    return PASSED


def pure(subject: Subject) -> Verdict:
    """Copies what is in the evidence before the call."""
    metric = subject.metric
    if isinstance(metric, DerivedMetric):
        for what, run in _runs(subject).items():
            texts = [record.model_dump_json() for record in run]
            metric.derive(run)
            if texts != [record.model_dump_json() for record in run]:
                return Failed("records that nobody writes to", f"changed: {what}")
        return PASSED
    for what, evidence in scenarios().items():
        copies = {layer: [part.clone() for part in parts_of(state)] for layer, state in evidence.states.items()}
        before = _plain(evidence)
        metric.measure(evidence)
        same = copies.keys() == evidence.states.keys() and _plain(evidence) == before
        if not same or not all(
            torch.equal(now, then)
            for layer, state in evidence.states.items()
            for now, then in zip(parts_of(state), copies[layer], strict=True)
        ):
            return Failed("evidence that nobody writes to", f"changed: {what}")
    return PASSED


def _plain(evidence: Evidence) -> str:
    """All of the evidence but its tensors, as text."""
    return repr({field.name: getattr(evidence, field.name) for field in fields(evidence) if field.name != "states"})


PROPERTIES = (
    Property("metric-info", "it says how it is named and shown", METRICS, info),
    Property("metric-value", "a finite number, or Missing with a reason: never NaN", METRICS, values),
    Property("metric-deterministic", "the same trial gives the same value", METRICS, deterministic),
    Property("metric-nothing", "nothing to measure is Missing, never a bare 0", METRICS, no_bare_zero),
    Property("metric-derived", "a derived metric answers for every trial", METRICS, every_record),
    Property("metric-pure", "it does not modify what it is shown", METRICS, pure),
)
