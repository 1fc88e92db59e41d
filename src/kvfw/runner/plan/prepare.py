"""Checks a request completely before any weights load, and turns it into a plan."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from kvfw.core.compose.budget import Amount
from kvfw.core.compose.composition import parse
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.records import FULL, MetricInfo, RowKey, TrialKey, stratum_of
from kvfw.core.contracts.task import Sample, Task, Turn
from kvfw.core.parts.files import file_digests
from kvfw.core.registry.registry import Registry
from kvfw.core.state.observation import Needs
from kvfw.errors import OptionError, PromptError
from kvfw.model.load.devices import choose_device, choose_dtype
from kvfw.model.load.load import OpenModel, open_model
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.decoding import decoding_plan
from kvfw.runner.plan.independent import check_independent
from kvfw.runner.plan.limits import check_length, check_parts, check_positions
from kvfw.runner.plan.metrics import is_asked, registered_metrics
from kvfw.runner.plan.task import built_task, check_scores, checked_samples

if TYPE_CHECKING:
    from kvfw.core.state.state import KVState
    from kvfw.model.session.plan import SessionPlan

FULL_ROW = RowKey(FULL, "ratio=1")


@dataclass(frozen=True)
class Row:
    """One row of the table: a composition at an amount. The baseline has no compressor.

    ``decoding``: how it is compressed again while decoding; None: not at all.
    """

    key: RowKey
    compressor: Compressor | None
    decoding: "SessionPlan | None" = None

    def ratio(self, context_tokens: int) -> float:
        """How many times fewer slots the middle gets: exact for ratios and fractions, computed for slots."""
        if self.compressor is None or not self.compressor.stages:
            return 1.0
        amount = self.compressor.amount
        if amount.kind == "ratio":
            return float(amount.value)
        if amount.kind == "keep":
            return float(1 / amount.value)
        sinks, recent = self.compressor.sinks, self.compressor.recent
        middle = context_tokens - sinks - recent
        return middle / amount.middle_slots(middle, sinks, recent)

    def held_ratio(self, context_tokens: int, states: "Mapping[int, KVState]") -> float | None:
        """How many times smaller the middle became, over the compressed layers and their KV heads.

        Args:
            context_tokens: length of what was compressed.
            states: the slots held of it by layer.

        Returns:
            1 for the baseline, and where every slot stays; None where no slot of the middle is left.
        """
        by = self.compressor
        if by is None or not by.stages:
            return 1.0
        slots = [n for i, state in states.items() if by.rule(i).stages for n in state.valid.sum(-1).flatten().tolist()]
        held = sum(slots) / len(slots) - by.sinks - by.recent if slots else 0
        return (context_tokens - by.sinks - by.recent) / held if held > 0 else None


@dataclass(frozen=True)
class Question:
    """One turn of a sample and how it is run.

    Args:
        number: of the turn in its sample, from 0.
        turn: the turn.
        exact_ids: tokens appended uncompressed after the compressed ones.
        timed: measure speed on it: the first turn of the first sample of its stratum.
        sha256: of the whole prompt's token ids.
    """

    number: int
    turn: Turn
    exact_ids: tuple[int, ...]
    timed: bool
    sha256: str


@dataclass(frozen=True)
class Planned:
    """The work of one prefill: a prompt with its question in it, or a context and every question about it.

    Args:
        sample: from the task.
        compressed_ids: the tokens that are compressed.
        questions: each runs on a fresh copy of the compressed cache.
    """

    sample: Sample
    compressed_ids: tuple[int, ...]
    questions: tuple[Question, ...]

    def key(self, row: RowKey, question: Question) -> TrialKey:
        """The key of a row's trial on one of the questions."""
        return TrialKey(compose=row.compose, amount=row.amount, sample=self.sample.id, turn=question.number)


@dataclass(frozen=True)
class EvalPlan:
    """A checked request.

    Args:
        rows: the baseline, then every composition at every amount.
        prompts: in the order they run.
        metrics: measured in every trial.
        derived: computed over the whole run.
        infos: of the task's scores and all metrics, in table order.
        references: rows that every row is compared with; None: ``full`` and the first composition.
        settings: decide whether two runs are comparable; JSON.
    """

    config: EvalConfig
    model: OpenModel
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
        """Everything a prefill must observe to serve all rows."""
        return reduce(Needs.__or__, (row.compressor.needs for row in self.rows if row.compressor), Needs())


def prepare(config: EvalConfig, registry: Registry) -> EvalPlan:
    """Checks a request without loading weights: cheap checks first, those that need the tokenizer last.

    Raises:
        RequestError: the request is invalid; the message gives the value, the rule and the way out.
        FetchError: configuration or tokenizer cannot be fetched.
    """
    if config.resume and config.out is None:
        raise OptionError("--resume needs the folder of the run to resume; give it with --out")
    amounts = config.amounts()
    compositions = tuple(dict.fromkeys(parse(text, registry) for text in config.compose if text.strip() != FULL))
    task, task_text = built_task(config, registry)
    metrics = registered_metrics(registry)
    check_scores(task, metrics, config.task)
    metrics = tuple(metric for metric in metrics if is_asked(metric, config))
    with blamed(f"task {config.task!r}"):
        task.check()
    model = open_model(config.model, trust_remote_code=config.trust_remote_code, registry=registry)
    device = choose_device(config.device)
    choose_dtype(config.dtype, device)
    model_config, depth = model.config, model.depth
    bound = [
        compressor(c, amount, sinks=config.sinks, recent=config.recent, depth=depth)
        for amount in amounts
        for c in compositions
        if c.stages or amount == amounts[0]  # where no slot is dropped, amounts make no difference
    ]
    tokenizer = model.tokenizer
    samples = checked_samples(task, tokenizer, config.task)
    prompts = _prompts(config, samples)
    for planned in prompts:
        _check_fit(planned, config, amounts if compositions else (), model_config)
    parts = [part for composition in compositions for part in composition.parts]
    check_independent(parts, task, config.task, samples, tokenizer)
    check_parts(bound, model, [planned.compressed_ids for planned in prompts])
    rows = tuple(
        Row(RowKey(str(each.composition), str(each.amount)), each, decoding_plan(each, config, tokenizer))
        for each in bound
    )
    settings = {
        "compose": [str(composition) for composition in compositions],
        "amounts": [str(amount) for amount in amounts],
        "task": task_text,
        "scores": [info.model_dump(mode="json") for info in task.scores],
        "question_aware": config.question_aware,
        "prompts_sha256": _asked_sha256(prompts),
        "model": config.model,
        "dtype": config.dtype,
        "device": device.type,
        "sinks": config.sinks,
        "recent": config.recent,
        "max_new_tokens": config.max_new_tokens,
        # Left out where it is not used, so that runs of before it can be resumed.
        **({} if config.compress_every is None else {"compress_every": config.compress_every}),
        **({"files": files} if (files := file_digests(parts)) else {}),
    }
    return EvalPlan(
        config=config,
        model=model,
        task=task,
        rows=(Row(FULL_ROW, None), *rows),
        prompts=prompts,
        metrics=tuple(metric for metric in metrics if isinstance(metric, Metric)),
        derived=tuple(metric for metric in metrics if isinstance(metric, DerivedMetric)),
        infos=(*task.scores, *(m.info for m in metrics if m.info.name not in {info.name for info in task.scores})),
        references=_references(config, rows, registry),
        settings=settings,
    )


def _references(config: EvalConfig, rows: tuple[Row, ...], registry: Registry) -> tuple[RowKey, ...] | None:
    """The reference rows in the order given. Raises OptionError if one is no row of this run."""
    if not config.reference:
        return None
    keys = {FULL: FULL_ROW, **{row.key.compose: row.key for row in reversed(rows)}}
    names = [FULL if text.strip() == FULL else str(parse(text, registry)) for text in config.reference]
    for name in names:
        if name not in keys:
            raise OptionError(f"reference {name!r} is no row of this run; its rows are {', '.join(keys)}")
    return tuple(keys[name] for name in names)


def _prompts(config: EvalConfig, samples: tuple[Sample, ...]) -> tuple[Planned, ...]:
    """The prefills of a run: question-aware one per prompt, question-agnostic one per context."""
    planned, strata = list[Planned](), set[str]()
    for sample in samples:
        stratum = stratum_of(sample.group)
        questions = []
        for number, asked in enumerate(sample.turns):
            turn = replace(asked, max_new_tokens=config.max_new_tokens or asked.max_new_tokens)
            digest = hashlib.sha256(" ".join(map(str, sample.context_ids + turn.exact_ids)).encode()).hexdigest()
            exact = () if config.question_aware else turn.exact_ids
            questions.append(Question(number, turn, exact, number == 0 and stratum not in strata, digest))
        strata.add(stratum)
        if config.question_aware:
            planned += [Planned(sample, sample.context_ids + each.turn.exact_ids, (each,)) for each in questions]
        else:
            planned.append(Planned(sample, sample.context_ids, tuple(questions)))
    return tuple(planned)


def _asked_sha256(prompts: tuple[Planned, ...]) -> str:
    """Hash of all that decides a trial: prompts, where their contexts end, references, response limits, texts fed."""
    asked = [
        question.sha256 + repr((len(planned.sample.context_ids), question.turn))
        for planned in prompts
        for question in planned.questions
    ]
    return hashlib.sha256("".join(asked).encode()).hexdigest()


def _check_fit(planned: Planned, config: EvalConfig, amounts: tuple[Amount, ...], model_config: Any) -> None:
    """Raises PromptError or BudgetError unless the prompt can be compressed and fits into the model.

    Question-aware, the question must also lie within the recent tokens.
    """
    sample, tokens = f"sample {planned.sample.id}", len(planned.compressed_ids)
    where = "" if config.question_aware else " before the question"
    check_length(f"{sample} has {tokens} tokens{where}, which", tokens, config, amounts)
    for question in planned.questions:
        turn, after = question.turn, len(question.turn.exact_ids)
        new = len(turn.follow_ids) or turn.max_new_tokens
        check_positions(f"{sample}'s", tokens + len(question.exact_ids), new, config.model, model_config)
        if config.question_aware and after > config.recent:
            raise PromptError(
                f"the {after} tokens after the context of {sample} (question, template, begun answer) do not fit in "
                f"the {config.recent} recent tokens that are always kept, so the question itself would be compressed; "
                f"use --recent {after} or more, or --question-agnostic"
            )
