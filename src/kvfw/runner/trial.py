"""One prompt: prefilled once, compressed, decoded and measured for every row."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from kvfw.core.metric import Evidence, Measured, Metric, Missing, Response
from kvfw.core.records import RowKey, TrialKey, TrialRecord, vector_text
from kvfw.core.state import KVState
from kvfw.model import decode
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
    """What came of one row on one prompt, before metrics.

    Args:
        response: what the model wrote.
        engine: works over the row's cache.
        kv_bytes, overhead_bytes: of the prompt's cache, before the response.
        slots_per_head: mean over layers and heads.
        seconds: by phase; decoding is the time of the batch the row was decoded in, divided by its rows.
    """

    response: Response
    engine: CacheEngine
    kv_bytes: int
    overhead_bytes: int
    slots_per_head: float
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
    """Records of the ``missing`` rows on one prompt, as soon as they are measured.

    Rows that keep equally many slots are decoded as one batch. The baseline always answers, since metrics compare
    with it.
    """
    new_tokens = plan.config.max_new_tokens
    (baseline,) = _answers(filled, (Row(FULL_ROW, None),), planned, new_tokens, tools)
    for batch in _batches(missing):
        own = batch[0].key == FULL_ROW
        answers = [baseline] if own else _answers(filled, batch, planned, new_tokens, tools)
        for row, answer in zip(batch, answers, strict=True):
            evidence = Evidence(
                prompt=planned.prompt,
                response=answer.response,
                reference=baseline.response,
                recalled=plan.task.recalled(answer.response.text, planned.prompt),
                states=answer.engine.states,
                kv_bytes=answer.kv_bytes,
                overhead_bytes=answer.overhead_bytes,
                timed=planned.timed,
                engine=answer.engine,
                reference_engine=baseline.engine,
            )
            yield _record(row, planned, evidence, plan.metrics, answer)


def _batches(rows: tuple[Row, ...]) -> Iterator[tuple[Row, ...]]:
    """Neighbouring rows of one amount, which keep equally many slots; the baseline alone."""
    for _, group in groupby(rows, key=lambda row: row.key.amount if row.compressor else None):
        yield tuple(group)


@torch.inference_mode()
def _answers(
    filled: Prefill, rows: tuple[Row, ...], planned: Planned, max_new_tokens: int, tools: Tools
) -> list[Answer]:
    """Compresses the prompt for every row, and lets the model answer over all of them at once."""
    loaded, after = tools.loaded, planned.exact_ids
    states, compress_s = [], []
    for row in rows:
        started = time.perf_counter()
        states.append(_states(filled, row))
        compress_s.append(time.perf_counter() - started)
    started = time.perf_counter()
    cache = filled.cache_of(*states)
    first_logits = filled.logits.expand(len(rows), -1)
    if after:
        first_logits = decode.feed(loaded.model, cache, after, len(rows))
    report = cache.report()
    responses = decode.greedy_rows(loaded.model, cache, first_logits, max_new_tokens)
    decode_s = (time.perf_counter() - started) / len(rows)
    slots = [n for layer in report.layers for n in layer.slots]
    return [
        Answer(
            response=Response(tokens, str(loaded.tokenizer.decode(list(tokens), skip_special_tokens=True))),
            engine=CacheEngine(loaded, filled, kept, after, tools.encoder),
            kv_bytes=report.kv_bytes // len(rows),
            overhead_bytes=report.overhead_bytes // len(rows),
            slots_per_head=sum(slots) / len(slots),
            seconds={"prefill": filled.seconds, "compress": seconds, "decode": decode_s},
        )
        for tokens, kept, seconds in zip(responses, states, compress_s, strict=True)
    ]


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
            "slots_per_head": answer.slots_per_head,
            "response_tokens": float(len(evidence.response.tokens)),
        },
        vectors=vectors,
    )
