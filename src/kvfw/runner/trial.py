"""One prompt: prefilled once, compressed, decoded and measured for every row."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvfw.core.metric import Evidence, Measured, Metric, Missing, Response
from kvfw.core.records import RowKey, TrialKey, TrialRecord, vector_text
from kvfw.core.state import KVState
from kvfw.model import decode
from kvfw.model.cache import CacheReport
from kvfw.model.load import LoadedModel
from kvfw.model.prefill import Prefill, prefill
from kvfw.model.sentence import SentenceEncoder
from kvfw.runner.engine import CacheEngine
from kvfw.runner.prepare import FULL_ROW, Plan, Planned, Row


@dataclass(frozen=True)
class Tools:
    """What is loaded once per run."""

    loaded: LoadedModel
    encoder: SentenceEncoder


@dataclass(frozen=True)
class Answer:
    """What came of one row on one prompt, before metrics."""

    response: Response
    engine: CacheEngine
    report: CacheReport
    seconds: dict[str, float]


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


def fill(plan: Plan, planned: Planned, tools: Tools) -> Prefill:
    """The one prefill of a prompt (question-agnostic: of its context) that serves all rows."""
    config = plan.config
    return prefill(
        tools.loaded.model,
        planned.compressed_ids,
        plan.needs,
        sinks=config.sinks,
        recent=config.recent,
        vocabulary=tools.loaded.tokenizer,
    )


def run_prompt(
    plan: Plan, planned: Planned, filled: Prefill, missing: tuple[Row, ...], tools: Tools
) -> Iterator[TrialRecord]:
    """Records of the ``missing`` rows on one prompt, each as soon as it is measured.

    The baseline always answers, since metrics compare with it.
    """
    new_tokens = plan.config.max_new_tokens
    baseline = _answer(filled, Row(FULL_ROW, None), planned, new_tokens, tools)
    for row in missing:
        answer = baseline if row.key == FULL_ROW else _answer(filled, row, planned, new_tokens, tools)
        evidence = Evidence(
            prompt=planned.prompt,
            response=answer.response,
            reference=baseline.response,
            recalled=plan.task.recalled(answer.response.text, planned.prompt),
            states=answer.engine.states,
            positions_kept=row.compressor is None or not row.compressor.moves_positions,
            kv_bytes=answer.report.kv_bytes,
            overhead_bytes=answer.report.overhead_bytes,
            timed=planned.timed,
            engine=answer.engine,
            reference_engine=baseline.engine,
        )
        yield _record(row, planned, evidence, plan.metrics, answer)


@torch.inference_mode()
def _answer(filled: Prefill, row: Row, planned: Planned, max_new_tokens: int, tools: Tools) -> Answer:
    """Compresses the prompt for a row and lets the model answer."""
    started = time.perf_counter()
    states = _states(filled, row)
    compressed = time.perf_counter()
    engine = CacheEngine(tools.loaded, filled, states, planned.exact_ids, tools.encoder)
    cache, first_logits = engine.started()
    report = cache.report()
    tokens = decode.greedy(tools.loaded.model, cache, first_logits, max_new_tokens)
    decoded = time.perf_counter()
    text = str(tools.loaded.tokenizer.decode(list(tokens), skip_special_tokens=True))
    seconds = {"prefill": filled.seconds, "compress": compressed - started, "decode": decoded - compressed}
    return Answer(Response(tokens, text), engine, report, seconds)


def _states(filled: Prefill, row: Row) -> dict[int, KVState]:
    return filled.full_states() if row.compressor is None else filled.compressed_states(row.compressor)


def _record(row: Row, planned: Planned, evidence: Evidence, metrics: tuple[Metric, ...], answer: Answer) -> TrialRecord:
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    vectors: dict[str, str] = {}
    for metric in metrics:
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
