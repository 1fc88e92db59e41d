"""Checks everything about a request before any weights load, and turns it into a plan."""

import hashlib
from dataclasses import dataclass
from functools import reduce
from typing import Any

from kvfw.core.compose.build import build_part
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.records import FULL, MetricInfo, RowKey
from kvfw.core.contracts.task import Prompt, Task, Trial
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.core.state.observation import Needs
from kvfw.errors import OptionError, PromptError, UnsupportedError
from kvfw.model.load.load import (
    ModelSource,
    choose_device,
    choose_dtype,
    load_config,
    load_tokenizer,
    resolve_model,
)
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.limits import check_length, check_positions, check_prompt
from kvfw.runner.plan.metrics import registered_metrics

FULL_ROW = RowKey(FULL, "ratio=1")


@dataclass(frozen=True)
class Row:
    """One row of the table: a composition at an amount; the baseline has no compressor."""

    key: RowKey
    compressor: Compressor | None

    def ratio(self, context_tokens: int) -> float:
        """Times smaller the middle becomes: as asked for a ratio, as it comes out for slots and fractions."""
        if self.compressor is None:
            return 1.0
        amount = self.compressor.amount
        if amount.kind == "ratio":
            return float(amount.value)
        if amount.kind == "keep":
            return float(1 / amount.value)
        sinks, recent = self.compressor.sinks, self.compressor.recent
        middle = context_tokens - sinks - recent
        return middle / amount.middle_slots(middle, sinks, recent)


@dataclass(frozen=True)
class Planned:
    """One prompt of the grid.

    Args:
        trial: where it stands in the grid.
        prompt: its tokens.
        compressed_ids: the tokens that are compressed: all of them, or the context of a question-agnostic run.
        timed: speed is measured on it: the first of its length.
        sha256: of its token ids.
    """

    trial: Trial
    prompt: Prompt
    compressed_ids: tuple[int, ...]
    timed: bool
    sha256: str

    @property
    def exact_ids(self) -> tuple[int, ...]:
        """Tokens that follow the compressed ones and stay exact."""
        return self.prompt.input_ids[len(self.compressed_ids) :]


@dataclass(frozen=True)
class EvalPlan:
    """A checked request.

    Args:
        rows: the baseline, then every composition at every amount.
        prompts: in the order they run.
        metrics: measured in every trial.
        derived: computed over the whole run.
        infos: what is known of all of them, in table order.
        references: rows that every row is compared with; None: ``full`` and the first composition.
        settings: what decides whether two runs are comparable; JSON.
    """

    config: EvalConfig
    source: ModelSource
    task: Task
    rows: tuple[Row, ...]
    prompts: tuple[Planned, ...]
    metrics: tuple[Metric, ...]
    derived: tuple[DerivedMetric, ...]
    infos: tuple[MetricInfo, ...]
    references: tuple[RowKey, ...] | None
    settings: dict[str, Any]

    @property
    def needs(self) -> Needs:
        """What one prefill must observe for all rows."""
        return reduce(Needs.__or__, (row.compressor.needs for row in self.rows if row.compressor), Needs())


def prepare(config: EvalConfig, registry: Registry) -> EvalPlan:
    """Checks a request: cheap things first, the tokenizer last, no weights.

    Raises:
        RequestError: one of its subclasses, with the value, the rule and the way out.
        FetchError: configuration or tokenizer cannot be fetched.
    """
    if config.resume and config.out is None:
        raise OptionError("--resume goes on with a run that exists; name its folder with --out")
    amounts = config.amounts()
    compositions = tuple(dict.fromkeys(parse(text, registry) for text in config.compose if text.strip() != FULL))
    built_task = build_part(Kind.TASK, config.task, registry)
    task = _task(config, built_task.value)
    with blamed(f"task {config.task!r}"):
        task.check_settings(config.contexts, config.depths, tuple(range(config.seeds)))
    source = resolve_model(config.model, registry)
    device = choose_device(config.device)
    choose_dtype(config.dtype, device)
    if compositions:
        for context in config.contexts:
            check_length(f"context {context}", context, config, amounts)
    model_config = load_config(source, trust_remote_code=config.trust_remote_code)
    for context in config.contexts:
        check_positions("a context of", context, config.max_new_tokens, config.model, model_config)
    prompts = _prompts(config, task, source)
    if compositions and not config.question_aware:
        for planned in prompts:
            trial, length = planned.trial, len(planned.compressed_ids)
            what = f"context {trial.context_tokens} leaves {length} tokens before the question, which"
            check_length(what, length, config, amounts)
    rows = tuple(
        Row(
            RowKey(str(composition), str(amount)),
            compressor(composition, amount, sinks=config.sinks, recent=config.recent),
        )
        for amount in amounts
        for composition in compositions
    )
    metrics = registered_metrics(registry)
    settings = {
        "compose": [str(composition) for composition in compositions],
        "amounts": [str(amount) for amount in amounts],
        "contexts": list(config.contexts),
        "depths": list(config.depths),
        "seeds": config.seeds,
        "task": built_task.text,
        "question_aware": config.question_aware,
        "begin_answer": getattr(task, "begin_answer", None),
        "haystack": str(found) if (found := getattr(task, "haystack", None)) is not None else None,
        "prompts_sha256": hashlib.sha256("".join(p.sha256 for p in prompts).encode()).hexdigest(),
        "model": config.model,
        "dtype": config.dtype,
        "device": device.type,
        "sinks": config.sinks,
        "recent": config.recent,
        "max_new_tokens": config.max_new_tokens,
    }
    return EvalPlan(
        config=config,
        source=source,
        task=task,
        rows=(Row(FULL_ROW, None), *rows),
        prompts=prompts,
        metrics=tuple(metric for metric in metrics if isinstance(metric, Metric)),
        derived=tuple(metric for metric in metrics if isinstance(metric, DerivedMetric)),
        infos=tuple(metric.info for metric in metrics),
        references=_references(config, rows, registry),
        settings=settings,
    )


def _references(config: EvalConfig, rows: tuple[Row, ...], registry: Registry) -> tuple[RowKey, ...] | None:
    """The rows that are to be compared with, in the order they were named.

    Raises:
        OptionError: a reference is no row of this run.
    """
    if not config.reference:
        return None
    keys = {FULL: FULL_ROW, **{row.key.compose: row.key for row in reversed(rows)}}
    names = [FULL if text.strip() == FULL else str(parse(text, registry)) for text in config.reference]
    for name in names:
        if name not in keys:
            raise OptionError(f"reference {name!r} is no row of this run; its rows are {', '.join(keys)}")
    return tuple(keys[name] for name in names)


def _task(config: EvalConfig, part: Part) -> Task:
    """The task, with the options that have settings of their own."""
    options: dict[str, Any] = {}
    for name in ("haystack", "begin_answer"):
        if name in type(part).model_fields:
            options[name] = getattr(config, name)
        elif name in config.model_fields_set:
            raise OptionError(f"task {config.task!r} has no option {name!r}")
    if "haystack" in options and options["haystack"] is None:
        del options["haystack"]
    if "begin_answer" in options and "begin_answer" not in config.model_fields_set:
        del options["begin_answer"]
    found = part.model_copy(update=options)
    if not isinstance(found, Task):
        raise UnsupportedError(f"task {config.task!r} has no `check`, `prompt` and `recalled`")
    return found


def _prompts(config: EvalConfig, task: Task, source: ModelSource) -> tuple[Planned, ...]:
    tokenizer = load_tokenizer(source, trust_remote_code=config.trust_remote_code)
    with blamed(f"task {config.task!r}"):
        task.check(tokenizer, config.contexts, config.depths, tuple(range(config.seeds)))
    planned = []
    for context in config.contexts:
        for seed in range(config.seeds):
            for depth in config.depths:
                trial = Trial(context, depth, seed)
                with blamed(f"task {config.task!r}"):
                    prompt = task.prompt(tokenizer, trial)
                check_prompt(prompt, trial, config.task)
                after = len(prompt.input_ids) - prompt.context_end
                if config.question_aware and after > config.recent:
                    raise PromptError(
                        f"the {after} tokens after the haystack (question, template, begun answer) do not fit in the "
                        f"{config.recent} recent tokens that are always kept, so the question itself would be "
                        f"compressed; use --recent {after} or more, or --question-agnostic"
                    )
                digest = hashlib.sha256(" ".join(map(str, prompt.input_ids)).encode()).hexdigest()
                end = len(prompt.input_ids) if config.question_aware else prompt.context_end
                timed = seed == 0 and depth == config.depths[0]
                planned.append(Planned(trial, prompt, prompt.input_ids[:end], timed, digest))
    return tuple(planned)
