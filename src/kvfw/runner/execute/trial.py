"""Runs one prompt: one prefill, then compression, decoding and metrics for every row."""

import math
from collections.abc import Collection, Iterator

from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.metric import Evidence, Measured, Missing
from kvfw.core.contracts.records import TrialKey, TrialRecord, vector_text
from kvfw.core.contracts.task import Sample, Task, Turn
from kvfw.errors import RunError
from kvfw.model.run.decode import end_tokens
from kvfw.model.run.prefill import Prefill, prefill
from kvfw.runner.execute.answers import Answer, Tools, answers, batches, compressed, rows_at_once
from kvfw.runner.plan.prepare import EvalPlan, Planned, Question, Row


def fill(plan: EvalPlan, planned: Planned, tools: Tools) -> Prefill:
    """The prefill of a prompt (question-agnostic: of its context) that all rows share."""
    config = plan.config
    return prefill(
        tools.loaded.model,
        planned.compressed_ids,
        plan.needs,
        sinks=config.sinks,
        recent=config.recent,
        vocabulary=tools.loaded.tokenizer,
        chunk=config.prefill_chunk,
    )


def run_prompt(
    plan: EvalPlan, planned: Planned, filled: Prefill, done: Collection[TrialKey], tools: Tools
) -> Iterator[TrialRecord]:
    """Yields each record of a prompt's rows and questions as soon as it is measured, except those in ``done``.

    The baseline always answers, because metrics compare with it. A row is compressed once for all questions.

    Raises:
        RunError: a row's part failed; raised after the records of all other rows.
    """
    full, *others = plan.rows
    missing = {row.key: [q for q in planned.questions if planned.key(row.key, q) not in done] for row in plan.rows}
    (whole,), _ = compressed(filled, (full,))
    baselines: dict[Question, Answer] = {}
    for question in planned.questions:
        if any(question in left for left in missing.values()):
            (baselines[question],) = answers(filled, (whole,), question, tools)
            if question in missing[full.key]:
                yield _record(full, planned, question, baselines[question], baselines[question], plan, tools)
    failed: list[tuple[Row, RunError]] = []
    at_once = rows_at_once(tools) if plan.config.compress_every is None else 1
    for batch in batches([row for row in others if missing[row.key]], at_once):
        ready, errors = compressed(filled, batch)
        failed += errors
        for question, baseline in baselines.items():
            asked = [each for each in ready if question in missing[each.row.key]]
            for each, answer in zip(asked, answers(filled, asked, question, tools, baseline), strict=True):
                yield _record(each.row, planned, question, answer, baseline, plan, tools)
    if failed:
        row, error = failed[0]
        raise RunError(
            f"{row.key.compose} {row.key.amount}: {error}\nAll other rows of this prompt are recorded. Fix the part "
            "and rerun with --resume, or evaluate without it in a new folder"
        ) from error


def scored(task: Task, response: str, sample: Sample, turn: Turn, measured: Collection[str] = ()) -> dict[str, float]:
    """The task's scores of a response but those that a metric measures, in table order.

    Raises:
        RunError: scoring fails or does not give a finite number for each.
    """
    who = f"task {type(task).__name__}"
    with blamed(who):
        found = dict(task.score(response, sample, turn))
    names = [info.name for info in task.scores if info.name not in measured]
    if found.keys() != set(names) or not all(isinstance(v, int | float) and math.isfinite(v) for v in found.values()):
        raise RunError(f"{who} scored a response {found} where a number is expected for each of {', '.join(names)}")
    return {name: float(found[name]) for name in names}


def _record(
    row: Row, planned: Planned, question: Question, answer: Answer, baseline: Answer, plan: EvalPlan, tools: Tools
) -> TrialRecord:
    sample, turn, response = planned.sample, question.turn, answer.response
    evidence = Evidence(
        sample=sample,
        turn=turn,
        response=response,
        reference=baseline.response,
        states=answer.engine.states,
        positions_kept=row.compressor is None or not row.compressor.moves_positions,
        kv_bytes=answer.report.kv_bytes,
        overhead_bytes=answer.report.overhead_bytes,
        timed=question.timed,
        engine=answer.engine,
        reference_engine=baseline.engine,
        peak_bytes=answer.peak_bytes,
    )
    by_metrics = {metric.info.name for metric in plan.metrics}
    values: dict[str, float | None] = {**scored(plan.task, response.text, sample, turn, by_metrics)}
    reasons, vectors = dict[str, str](), dict[str, str]()
    for metric in plan.metrics:
        name = metric.info.name
        value = metric.measure(evidence)
        if isinstance(value, Missing):
            values[name], reasons[name] = None, value.reason
        elif isinstance(value, Measured):
            values[name], vectors[name] = value.value, vector_text(value.vector)
        else:
            values[name] = value
    slots = [n for layer in answer.report.layers for n in layer.slots]
    held = row.held_ratio(len(planned.compressed_ids), answer.engine.states)
    cut = not turn.follow_ids and response.tokens[-1] not in end_tokens(tools.loaded.model)
    return TrialRecord(
        key=planned.key(row.key, question),
        group=sample.group,
        facets=dict(sample.facets),
        ratio=row.ratio(len(planned.compressed_ids)),
        prompt_sha256=question.sha256,
        references=turn.references,
        response=response.text,
        metrics=values,
        reasons=reasons,
        seconds=answer.seconds,
        extra={
            "slots_per_head": sum(slots) / len(slots),
            "response_tokens": float(len(response.tokens)),
            "response_cut": float(cut),
            **({} if held is None else {"held_ratio": held}),
        },
        vectors=vectors,
    )
