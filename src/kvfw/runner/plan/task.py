"""Builds the task of an evaluation, fills in options from settings of the same names, and checks its samples."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import ValidationError

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.task import Sample, Task, Tokenizer
from kvfw.core.parts.part import default_text, value_text
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.errors import OptionError, RunError, UnsupportedError
from kvfw.runner.plan.config import EvalConfig

SHORTHAND: Final = ("contexts", "depths", "seeds", "haystack", "begin_answer")
"""Settings that set the task's options of the same names."""


def built_task(config: EvalConfig, registry: Registry) -> tuple[Task, str]:
    """The task with all its options, and its canonical text.

    Raises:
        RequestError: the text is invalid, the task lacks an option, or an option has two values or one out of range.
    """
    built = build_part(Kind.TASK, config.task, registry)
    part = built.value
    given = {name: value for name in SHORTHAND if (value := getattr(config, name)) is not None}
    options: dict[str, Any] = {name: getattr(part, name) for name in type(part).model_fields}
    texts = {name: option.text for name, option in built.options.items()}
    for name, value in given.items():
        by_preset = name not in config.model_fields_set
        if name not in options:
            source = f"preset {config.preset!r} sets {name}" if by_preset else f"{name} is {value_text(value)}"
            raise OptionError(f"{source}, but task {config.task!r} has no option {name!r}; leave it out")
        written = name in part.model_fields_set
        if written and by_preset:
            continue  # the task's text wins over a preset
        if written and options[name] != value:
            raise OptionError(
                f"{name} is given twice: {value_text(value)} as a setting and {value_text(options[name])} in task "
                f"{config.task!r}; leave one out"
            )
        options[name], texts[name] = value, value_text(value)
    try:
        task = type(part)(**options)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise OptionError(f"{name} is {problem['input']!r}: {problem['msg']} (task {config.task!r})") from None
    if not isinstance(task, Task):
        raise UnsupportedError(f"task {config.task!r} has no `scores`, `check`, `samples` and `score`")
    fields = type(part).model_fields
    shown = [f"{name}={texts[name]}" for name, info in fields.items() if texts[name] != default_text(info)]
    assert built.spec is not None
    return task, built.spec.name + (f"({','.join(shown)})" if shown else "")


def check_scores(task: Task, metrics: Sequence[Metric | DerivedMetric], name: str) -> None:
    """Raises UnsupportedError unless score names are unique and exactly one score is primary.

    A score may have a metric's name only if it is that metric.
    """
    names = [info.name for info in task.scores]
    taken = {metric.info.name: metric.info for metric in metrics if isinstance(metric, Metric)}
    derived = {metric.info.name for metric in metrics} - taken.keys()
    for info in task.scores:
        score = info.name
        other = score in taken and info != taken[score].model_copy(update={"primary": info.primary})
        if other or score in derived or names.count(score) > 1:
            raise UnsupportedError(f"task {name!r}: the name of score {score!r} is taken by another score or metric")
    if sum(info.primary for info in task.scores) != 1:
        raise UnsupportedError(f"task {name!r} must mark one of its scores ({', '.join(names)}) as primary")


def checked_samples(task: Task, tokenizer: Tokenizer, name: str) -> tuple[Sample, ...]:
    """All samples of a run.

    Raises:
        PromptError: a sample cannot be made.
        RunError: the task fails, or a sample breaks the contract.
    """
    with blamed(f"task {name!r}"):
        samples = tuple(task.samples(tokenizer))
        wrong = sample_fault(samples)
    if wrong:
        raise RunError(f"task {name!r} {wrong}")
    return samples


def sample_fault(samples: Iterable[Sample]) -> str:
    """The first fault of a task's samples, or an empty text."""
    first: Sample | None = None
    ids = set[str]()
    for sample in samples:
        first = first or sample
        of = f"sample {sample.id!r}"
        if not sample.id or not sample.group:
            return f"made {of} of group {sample.group!r}; both need a name"
        if sample.id in ids:
            return f"made two samples called {sample.id!r}"
        ids.add(sample.id)
        if list(sample.facets) != list(first.facets):
            return f"made {of} with the facets {list(sample.facets)} after {first.id!r} with {list(first.facets)}"
        for facet, value in sample.facets.items():
            if type(value) not in (int, float, str) or (isinstance(value, float) and not math.isfinite(value)):
                return f"made {of} whose facet {facet!r} is {value!r}; it must be a number or a word"
            if isinstance(value, str) != isinstance(other := first.facets[facet], str):
                return (
                    f"made {of} whose facet {facet!r} is {value!r} after {other!r}; all must be numbers, or all words"
                )
        if not sample.context_ids or not sample.turns:
            return f"made {of} without a {'turn' if sample.context_ids else 'context'}"
        for span in sample.spans:
            if not (span.step == 1 and 0 <= span.start < span.stop <= len(sample.context_ids)):
                return f"made {of} of {len(sample.context_ids)} context tokens with a span at {span}"
        for number, turn in enumerate(sample.turns, start=1):
            if turn.max_new_tokens < 1 or not turn.exact_ids + turn.follow_ids:
                what = "nothing to ask" if turn.max_new_tokens > 0 else f"max_new_tokens={turn.max_new_tokens}"
                return f"made {of} whose turn {number} has {what}"
        ids_of = (sample.context_ids, *(turn.exact_ids + turn.follow_ids for turn in sample.turns))
        if not all(type(token) is int and token >= 0 for tokens in ids_of for token in tokens):
            return f"made {of} with tokens that are not whole numbers from 0"
    return "" if first else "made no samples"
