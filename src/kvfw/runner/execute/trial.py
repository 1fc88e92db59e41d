"""One prompt: prefilled once, compressed, decoded and measured for every row."""

from collections.abc import Iterator

from kvfw.core.contracts.blame import blamed
from kvfw.core.contracts.metric import Evidence, Measured, Missing
from kvfw.core.contracts.records import RowKey, TrialKey, TrialRecord, vector_text
from kvfw.core.contracts.task import Task
from kvfw.errors import RunError
from kvfw.model.run.prefill import Prefill, prefill
from kvfw.runner.execute.answers import Answer, Tools, answers, batches, rows_at_once
from kvfw.runner.plan.prepare import FULL_ROW, EvalPlan, Planned, Row


def trial_key(row: RowKey, planned: Planned) -> TrialKey:
    """Name of the record of one row on one prompt."""
    trial = planned.trial
    return TrialKey(
        compose=row.compose,
        amount=row.amount,
        context=trial.context_tokens,
        depth=trial.depth_percent,
        seed=trial.seed,
    )


def fill(plan: EvalPlan, planned: Planned, tools: Tools) -> Prefill:
    """The one prefill of a prompt (question-agnostic: of its context) that serves all rows."""
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
    plan: EvalPlan, planned: Planned, filled: Prefill, missing: tuple[Row, ...], tools: Tools
) -> Iterator[TrialRecord]:
    """Records of the ``missing`` rows on one prompt, each as soon as its batch has answered and it is measured.

    The baseline always answers, since metrics compare with it.

    Raises:
        RunError: a row's part failed; after the records of all other rows.
    """
    config, exact = plan.config, planned.exact_ids
    full = Row(FULL_ROW, None)
    ((_, baseline),) = answers(filled, (full,), exact, config.max_new_tokens, tools).done
    if any(row.key == FULL_ROW for row in missing):
        yield _record(full, planned, baseline, baseline, plan)
    failed: list[tuple[Row, RunError]] = []
    for batch in batches([row for row in missing if row.key != FULL_ROW], rows_at_once(tools)):
        found = answers(filled, batch, exact, config.max_new_tokens, tools)
        failed += found.failed
        for row, answer in found.done:
            yield _record(row, planned, answer, baseline, plan)
    if failed:
        row, error = failed[0]
        raise RunError(
            f"{row.key.compose} {row.key.amount}: {error}\nAll other rows of this prompt are recorded. Mend the part "
            "and resume the run, or evaluate without it in a new folder"
        ) from error


def _evidence(row: Row, planned: Planned, answer: Answer, baseline: Answer, task: Task) -> Evidence:
    with blamed(f"task {type(task).__name__}"):
        recalled = bool(task.recalled(answer.response.text, planned.prompt))
    return Evidence(
        prompt=planned.prompt,
        response=answer.response,
        reference=baseline.response,
        recalled=recalled,
        states=answer.engine.states,
        positions_kept=row.compressor is None or not row.compressor.moves_positions,
        kv_bytes=answer.report.kv_bytes,
        overhead_bytes=answer.report.overhead_bytes,
        timed=planned.timed,
        engine=answer.engine,
        reference_engine=baseline.engine,
    )


def _record(row: Row, planned: Planned, answer: Answer, baseline: Answer, plan: EvalPlan) -> TrialRecord:
    evidence = _evidence(row, planned, answer, baseline, plan.task)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    vectors: dict[str, str] = {}
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
    return TrialRecord(
        key=trial_key(row.key, planned),
        ratio=row.ratio(len(planned.compressed_ids)),
        prompt_sha256=planned.sha256,
        answer=planned.prompt.answer,
        response=evidence.response.text,
        metrics=values,
        reasons=reasons,
        seconds=answer.seconds,
        extra={
            "slots_per_head": sum(slots) / len(slots),
            "response_tokens": float(len(evidence.response.tokens)),
        },
        vectors=vectors,
    )
