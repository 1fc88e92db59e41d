"""Checks that a task's samples are usable and reproducible, and that its scores tell right from wrong."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

from pydantic import ValidationError

from kvfw.core.contracts.task import Sample, Task
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import default_registry
from kvfw.errors import KvfwError, PromptError, RunError
from kvfw.runner.plan.task import sample_fault
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.other_process import digests, digests_elsewhere
from kvfw.verify.instruments.tokenizer import SuiteTokenizer

TASKS = frozenset({Kind.TASK})
#: Number of samples checked: the first ones, since a task's defaults may make many.
FIRST = 12
#: Lengths tried in turn for a task whose own is too short.
CONTEXTS = (1024, 2048, 4096)
#: Options that make a sample for each of their values.
GRID = ("contexts", "depths")


def _metrics() -> set[str]:
    """Names of the metrics, which a task can be judged by without scoring them."""
    return {spec.name for spec in default_registry().of_kind(Kind.METRIC)}


def _options(task: Task) -> dict[str, object]:
    """The task's options and their values."""
    return {name: getattr(task, name) for name in type(cast(Any, task)).model_fields}


def _with(task: Task, **options: object) -> Task:
    """The same task with other values for these options."""
    made: Task = type(cast(Any, task))(**_options(task) | options)
    return made


def _task(subject: Subject) -> Task:
    """The task, with longer prompts if needed: the suite's tokenizer splits words more than others."""
    task: Task = subject.part
    for context in CONTEXTS if "contexts" in _options(task) else ():
        try:
            next(iter(task.samples(SuiteTokenizer())), None)
        except PromptError:
            task = _with(task, contexts=(context,))
        else:
            break
    return task


def _samples(task: Task) -> tuple[Sample, ...]:
    return tuple(islice(task.samples(SuiteTokenizer()), FIRST))


@holds("task-samples", "samples have ids, groups, facets, tokens and spans", TASKS)
def well_formed(subject: Subject) -> Verdicts:
    """Makes the same checks as every run."""
    wrong = sample_fault(_samples(_task(subject)))
    if wrong:
        yield Failed("samples as the contract describes them", f"the task {wrong}")


@holds("task-repeatable", "the samples are the same in every instance and process", TASKS)
def repeatable(subject: Subject) -> Verdicts:
    """Compares samples of a second call, of another instance, and of another process."""
    task = _task(subject)
    first = digests(task, FIRST)
    for who, other in (("in a second call", task), ("by another instance", _with(task))):
        if digests(other, FIRST) != first:
            yield Failed(f"the same samples {who}", "other ones")
    try:
        elsewhere = digests_elsewhere(task, FIRST, hash_seed=12345)
    except RunError as error:
        yield Failed("the same samples in another process", str(error))
        return
    if elsewhere != first:
        yield Failed("the same samples in another process", "other ones")


@holds("task-length", "a prompt is exactly as long as its context says", TASKS)
def length(subject: Subject) -> Verdicts:
    """Counts the longest prompt of a sample, if the task has prompt lengths as an option and as a facet."""
    task = _task(subject)
    samples = _samples(task)
    if "contexts" not in _options(task) or not all("context" in sample.facets for sample in samples):
        yield NotApplicable("it is not asked for lengths")
        return
    for sample in samples:
        tokens = len(sample.context_ids) + max(len(turn.exact_ids) for turn in sample.turns)
        if tokens != sample.facets["context"]:
            yield Failed(f"{sample.facets['context']} tokens in sample {sample.id}", f"{tokens}")


@holds("task-references", "every turn has references or a text to follow", TASKS)
def references(subject: Subject) -> Verdicts:
    for sample in _samples(_task(subject)):
        for turn in sample.turns:
            if not turn.follow_ids and not any(turn.references):
                yield Failed("references, or follow_ids", f"neither in a turn of sample {sample.id}")


@holds("task-scores", "a response gets a number for every score, one of them primary", TASKS)
def scores(subject: Subject) -> Verdicts:
    """Requires exactly one primary score, whose better direction is known."""
    task = _task(subject)
    primary = [info for info in task.scores if info.primary]
    if len(primary) != 1 or primary[0].higher_is_better is None:
        yield Failed("one primary score with a direction", f"{len(primary)} among {len(task.scores)} scores")
    names = {info.name for info in task.scores} - _metrics()
    for sample in _samples(task)[:4]:
        for turn in sample.turns:
            for response in (*turn.references, "", "something else\n"):
                found = task.score(response, sample, turn)
                if found.keys() != names or not all(map(math.isfinite, found.values())):
                    yield Failed(f"a finite number for each of {', '.join(sorted(names))}", f"{dict(found)}")


@holds("task-best", "a reference scores best, an empty response does not", TASKS)
def best(subject: Subject) -> Verdicts:
    """No response may score better than a reference."""
    task = _task(subject)
    (info,) = (info for info in task.scores if info.primary)
    if info.name in _metrics():
        return
    sign = -1 if info.higher_is_better is False else 1
    for sample in _samples(task)[:4]:
        for turn in sample.turns:
            of = {text: sign * task.score(text, sample, turn)[info.name] for text in (*turn.references, "", "no idea")}
            top = max((of[text] for text in turn.references if text), default=math.inf)
            if info.proportion and turn.references and top != max(sign, 0):
                yield Failed(f"{info.name} is {max(sign, 0)} for a reference", f"{sign * top} in sample {sample.id}")
            for text in ("", "no idea"):
                if text not in turn.references and of[text] >= top:
                    yield Failed(f"a worse {info.name} for {text!r} than for a reference", f"{sign * of[text]}")


@holds("task-refuses", "impossible options are refused", TASKS)
def refuses(subject: Subject) -> Verdicts:
    task = _task(subject)
    cases: Mapping[str, dict[str, object]] = {
        "no contexts": {"contexts": ()},
        "no depths": {"depths": ()},
        "no seeds": {"seeds": 0},
        "a depth of 101 percent": {"depths": (101.0,)},
        "a depth of -1 percent": {"depths": (-1.0,)},
    }
    asked = {what: options for what, options in cases.items() if options.keys() <= _options(task).keys()}
    for what, options in asked.items():
        try:
            _with(task, **options).check()
        except (KvfwError, ValidationError):
            continue
        yield Failed(f"check raises a KvfwError for {what}", "it accepts them")
    task.check()
    if "contexts" in _options(task):
        try:
            _samples(_with(task, contexts=(2,)))
        except (KvfwError, ValidationError):
            return
        yield Failed("samples raises a KvfwError for a prompt of 2 tokens", "it makes it")
    if not asked:
        yield NotApplicable("it has none of the options contexts, depths and seeds")


@holds("task-seeds", "every seed gives another prompt", TASKS)
def seeds_differ(subject: Subject) -> Verdicts:
    task = _task(subject)
    if "seeds" not in _options(task):
        yield NotApplicable("it has no option seeds")
        return
    few = {name: value[:1] for name, value in _options(task).items() if name in GRID and isinstance(value, tuple)}
    made = {sample.context_ids for sample in _samples(_with(task, seeds=4, **few))}
    if not (len(made) >= 4):
        yield Failed("4 prompts for 4 seeds", f"{len(made)}")
