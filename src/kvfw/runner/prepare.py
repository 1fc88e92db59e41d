"""Checks everything about a request before any weights load, and turns it into a plan."""

import hashlib
from dataclasses import dataclass
from functools import reduce
from typing import Any

from kvfw.core.budget import Amount
from kvfw.core.compressor import Compressor, compressor
from kvfw.core.metric import Metric
from kvfw.core.observation import Needs
from kvfw.core.parts import Kind
from kvfw.core.records import FULL, RowKey
from kvfw.core.registry import Registry
from kvfw.core.spec import Composition, build_part, parse
from kvfw.core.task import Prompt, Task, Trial
from kvfw.errors import OptionError, PromptError, UnsupportedError
from kvfw.model.load import (
    ModelSource,
    choose_device,
    choose_dtype,
    load_config,
    load_tokenizer,
    resolve_model,
)
from kvfw.runner.config import EvalConfig

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
        timed: speed is measured on it: the first of its length.
        sha256: of its token ids.
    """

    trial: Trial
    prompt: Prompt
    timed: bool
    sha256: str


@dataclass(frozen=True)
class Plan:
    """A checked request.

    Args:
        rows: the baseline, then every composition at every amount.
        prompts: in the order they run.
        settings: what decides whether two runs are comparable; JSON.
    """

    config: EvalConfig
    source: ModelSource
    task: Task
    rows: tuple[Row, ...]
    prompts: tuple[Planned, ...]
    metrics: tuple[Metric, ...]
    settings: dict[str, Any]

    @property
    def needs(self) -> Needs:
        """What one prefill must observe for all rows."""
        return reduce(Needs.__or__, (row.compressor.needs for row in self.rows if row.compressor), Needs())


def prepare(config: EvalConfig, registry: Registry) -> Plan:
    """Checks a request: cheap things first, the tokenizer last, no weights.

    Raises:
        RequestError: one of its subclasses, with the value, the rule and the way out.
        FetchError: configuration or tokenizer cannot be fetched.
    """
    amounts = config.amounts()
    compositions = [parse(text, registry) for text in config.compose if text.strip() != FULL]
    task = _task(config, registry)
    source = resolve_model(config.model)
    device = choose_device(config.device)
    choose_dtype(config.dtype, device)
    _check_lengths(config, amounts, compositions)
    _check_positions(config, load_config(source, trust_remote_code=config.trust_remote_code))
    prompts = _prompts(config, task, source)
    rows = tuple(
        Row(
            RowKey(str(composition), str(amount)),
            compressor(composition, amount, sinks=config.sinks, recent=config.recent, registry=registry),
        )
        for amount in amounts
        for composition in dict.fromkeys(compositions)
    )
    metrics = tuple(_metric(spec.name, registry) for spec in registry.of_kind(Kind.METRIC))
    settings = {
        "compose": [str(composition) for composition in dict.fromkeys(compositions)],
        "amounts": [str(amount) for amount in amounts],
        "contexts": list(config.contexts),
        "depths": list(config.depths),
        "seeds": config.seeds,
        "task": config.task,
        "question_aware": True,
        "begin_answer": config.begin_answer,
        "haystack": str(config.haystack) if config.haystack is not None else None,
        "prompts_sha256": hashlib.sha256("".join(p.sha256 for p in prompts).encode()).hexdigest(),
        "model": config.model,
        "dtype": config.dtype,
        "device": device.type,
        "sinks": config.sinks,
        "recent": config.recent,
        "max_new_tokens": config.max_new_tokens,
    }
    return Plan(config, source, task, (Row(FULL_ROW, None), *rows), prompts, metrics, settings)


def _metric(name: str, registry: Registry) -> Metric:
    part = build_part(Kind.METRIC, name, registry)
    if not isinstance(part, Metric):
        raise UnsupportedError(f"metric {name!r} has no `info` and `measure`")
    return part


def _task(config: EvalConfig, registry: Registry) -> Task:
    """The task, with the options that have settings of their own."""
    part = build_part(Kind.TASK, config.task, registry)
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


def _check_lengths(config: EvalConfig, amounts: tuple[Amount, ...], compositions: list[Composition]) -> None:
    """Every context must have a middle, and every amount a slot for it."""
    always = config.sinks + config.recent
    for context in config.contexts:
        for amount in amounts if compositions else ():
            needed = always + amount.least_middle()
            if context < needed:
                raise PromptError(
                    f"context {context} is too short to compress at {amount}: {config.sinks} sinks and {config.recent} "
                    f"recent tokens are always kept, so at least {needed} tokens are needed"
                )
            amount.middle_slots(context - always, config.sinks, config.recent)


def _check_positions(config: EvalConfig, model_config: Any) -> None:
    limit = getattr(model_config.get_text_config(decoder=True), "max_position_embeddings", None)
    for context in config.contexts:
        if limit is not None and context + config.max_new_tokens > limit:
            raise PromptError(
                f"context {context} and {config.max_new_tokens} new tokens exceed the {limit} positions of model "
                f"{config.model}; use a context of at most {limit - config.max_new_tokens}"
            )


def _prompts(config: EvalConfig, task: Task, source: ModelSource) -> tuple[Planned, ...]:
    tokenizer = load_tokenizer(source, trust_remote_code=config.trust_remote_code)
    task.check(tokenizer, config.contexts, config.depths, tuple(range(config.seeds)))
    planned = []
    for context in config.contexts:
        for seed in range(config.seeds):
            for depth in config.depths:
                trial = Trial(context, depth, seed)
                prompt = task.prompt(tokenizer, trial)
                after = len(prompt.input_ids) - prompt.context_end
                if after > config.recent:
                    raise PromptError(
                        f"the {after} tokens after the haystack (question, template, begun answer) do not fit in the "
                        f"{config.recent} recent tokens that are always kept, so the question itself would be "
                        f"compressed; use --recent {after} or more"
                    )
                digest = hashlib.sha256(" ".join(map(str, prompt.input_ids)).encode()).hexdigest()
                planned.append(Planned(trial, prompt, seed == 0 and depth == config.depths[0], digest))
    return tuple(planned)
