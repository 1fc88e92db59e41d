"""Checks that a metric gives a finite number or a reason why there is none."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

import torch

from kvfw.core.contracts.metric import DerivedMetric, Evidence, Measured, Metric, Missing, Value
from kvfw.core.contracts.records import MetricInfo, TrialRecord
from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.evidence import nothing, records, scenarios

METRICS = frozenset({Kind.METRIC})


@holds("metric-info", "it says how it is named and shown", METRICS)
def info(subject: Subject) -> Verdicts:
    found = getattr(subject.part, "info", None)
    if not isinstance(found, MetricInfo):
        yield Failed("a class variable `info` that is a kvfw.MetricInfo", type(found).__name__)
    elif found.name != subject.spec.name:
        yield Failed(f"info.name is the registered name, {subject.spec.name!r}", repr(found.name))


def _runs(subject: Subject) -> Mapping[str, list[TrialRecord]]:
    """Runs for derived metrics, which need all records; the key describes the run."""
    names = tuple(spec.name for spec in subject.registry.of_kind(Kind.METRIC) if spec.name != subject.spec.name)
    return {
        "an ordinary run": records(names),
        "a run of one prompt": records(names, seeds=1),
        "a run without stored vectors": records(names, vectors=False),
        "a run without values": records((), vectors=False),
    }


def _answers(subject: Subject) -> Iterator[tuple[str, Callable[[], list[Value]]]]:
    """Each case, with a function that makes the metric's values for it."""
    metric: Metric | DerivedMetric = subject.part
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
    """What is wrong with a value; an empty string if nothing is."""
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


@holds("metric-value", "a finite number, or Missing with a reason: never NaN", METRICS)
def values(subject: Subject) -> Verdicts:
    for what, ask in _answers(subject):
        for value in ask():
            if fault := _fault(value):
                yield Failed("a finite number, or Missing with a reason", f"{fault} for {what}")


@holds("metric-deterministic", "the same trial gives the same value", METRICS)
def deterministic(subject: Subject) -> Verdicts:
    for what, ask in _answers(subject):
        first, second = ask(), ask()
        if first != second:
            yield Failed("the same answer twice", f"{first} and {second} for {what}")


@holds("metric-nothing", "nothing to measure is Missing, never a bare 0", METRICS)
def no_bare_zero(subject: Subject) -> Verdicts:
    """A 0 would be taken for a result. For a proportion, which counts hits, it is one."""
    metric: Metric | DerivedMetric = subject.part
    if metric.info.proportion:
        return
    if isinstance(metric, DerivedMetric):
        seen = _derived(metric, _runs(subject)["a run without values"])
    else:
        seen = _measured(metric, nothing())
    if any(not isinstance(value, Missing) and value == 0 for value in seen):
        yield Failed("Missing with a reason where there is nothing to measure", "0")


@holds("metric-derived", "a derived metric answers for every trial", METRICS)
def every_record(subject: Subject) -> Verdicts:
    """It must also answer for no other trial."""
    metric: Metric | DerivedMetric = subject.part
    if not isinstance(metric, DerivedMetric):
        yield NotApplicable("it measures each trial by itself")
        return
    for what, run in _runs(subject).items():
        keys = {record.key for record in run}
        seen = set(metric.derive(run))
        if seen != keys:
            yield Failed(f"an answer for each of {len(keys)} trials", f"{len(seen & keys)} for {what}")


@holds("metric-pure", "it does not modify what it is shown", METRICS)
def pure(subject: Subject) -> Verdicts:
    metric: Metric | DerivedMetric = subject.part
    if isinstance(metric, DerivedMetric):
        for what, run in _runs(subject).items():
            texts = [record.model_dump_json() for record in run]
            metric.derive(run)
            if texts != [record.model_dump_json() for record in run]:
                yield Failed("records that nobody writes to", f"changed: {what}")
        return
    for what, evidence in scenarios().items():
        copies = {layer: [part.clone() for part in state.parts] for layer, state in evidence.states.items()}
        before = _plain(evidence)
        metric.measure(evidence)
        same = copies.keys() == evidence.states.keys() and _plain(evidence) == before
        if not same or not all(
            torch.equal(now, then)
            for layer, state in evidence.states.items()
            for now, then in zip(state.parts, copies[layer], strict=True)
        ):
            yield Failed("evidence that nobody writes to", f"changed: {what}")


def _plain(evidence: Evidence) -> str:
    """The evidence without its tensors, as text."""
    return repr({field.name: getattr(evidence, field.name) for field in fields(evidence) if field.name != "states"})
