"""Answers one prompt for many rows: compresses one by one, decodes in a batch where that gives the same tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import torch

from kvfw.core.contracts.metric import Response
from kvfw.core.state.state import KVState
from kvfw.errors import RunError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.report import CacheReport
from kvfw.model.compat.clock import clock_s
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run.batch import can_decode_together, feed_together, greedy_together
from kvfw.model.run.prefill import Prefill
from kvfw.runner.execute.engine import CacheEngine
from kvfw.runner.plan.prepare import Question, Row

#: Most rows decoded at once, to bound memory: a batch holds its rows' caches twice.
BATCH_ROWS = 16


@dataclass(frozen=True)
class Tools:
    """The models loaded once per run."""

    loaded: LoadedModel
    encoder: SentenceEncoder


@dataclass(frozen=True)
class Answer:
    """One row's answer to one prompt, before metrics.

    ``seconds``: of the shared prefill and probes, this row's compression, and this row's share of its batch's decoding.
    ``peak_bytes``: the most keys and values held between forwards; None where a batch or a given text was decoded.
    """

    response: Response
    engine: CacheEngine
    report: CacheReport
    seconds: dict[str, float]
    peak_bytes: int | None = None


def batches(rows: Sequence[Row], most: int) -> Iterator[tuple[Row, ...]]:
    """The rows in order, at most ``most`` at a time, all of one amount, so that they hold the same number of slots.

    A row whose slots are coded comes alone: its cache is not made of states.
    """

    def kind(row: Row) -> tuple[str, bool]:
        return row.key.amount, row.compressor is not None and row.compressor.codes

    for (_, coded), same in groupby(rows, key=kind):
        while batch := tuple(islice(same, 1 if coded else most)):
            yield batch


def rows_at_once(tools: Tools) -> int:
    """How many rows to decode at once: one if a batch might give other tokens."""
    return BATCH_ROWS if can_decode_together(tools.loaded.model) else 1


@dataclass(frozen=True)
class Compressed:
    """The slots of a prefill compressed for one row, and how many seconds that took.

    ``cache``: the same slots, coded, or with what compressions while decoding need, for a row that asks for either.
    """

    row: Row
    states: dict[int, KVState]
    seconds: float
    cache: CompressedCache | None = None


@torch.inference_mode()
def compressed(filled: Prefill, rows: Sequence[Row]) -> tuple[tuple[Compressed, ...], tuple[tuple[Row, RunError], ...]]:
    """Compresses a prompt for every row. Rows whose part fails come second, with their errors; the rest go on."""
    device = filled.logits.device
    ready, failed = [], []
    for row in rows:
        started, cache = clock_s(device), None
        try:
            if row.decoding is not None:
                cache = filled.to_be_continued(row.decoding)
            elif row.compressor is not None and row.compressor.codes:
                cache = filled.compressed(row.compressor)
            if cache is not None:
                states = {index: cache.state(index) for index in filled.observations}
            else:
                states = filled.full_states() if row.compressor is None else filled.compressed_states(row.compressor)
        except RunError as error:
            failed.append((row, error))
            continue
        ready.append(Compressed(row, states, clock_s(device) - started, cache))
    return tuple(ready), tuple(failed)


@torch.inference_mode()
def answers(
    filled: Prefill, rows: Sequence[Compressed], question: Question, tools: Tools, baseline: Answer | None = None
) -> tuple[Answer, ...]:
    """The model's answers to a question over the slots of each row; ``rows`` are one batch of :func:`batches`.

    ``baseline``: the full cache's answer; None: the only row is the full cache.
    """
    device = tools.loaded.model.device
    reference = None if baseline is None else (baseline.engine, baseline.response.tokens)
    after, encoder = question.exact_ids, tools.encoder
    engines = [
        CacheEngine(tools.loaded, filled, each.states, after, encoder, each.row.decoding, each.cache, reference)
        for each in rows
    ]
    started = clock_s(device)
    written = _decoded(filled, engines, question, tools)
    decode_s = (clock_s(device) - started) / max(len(rows), 1)
    return tuple(
        Answer(
            Response(tokens, str(tools.loaded.tokenizer.decode(list(tokens), skip_special_tokens=True))),
            engine,
            report,
            {"prefill": filled.seconds, "probe": filled.probe_seconds, "compress": row.seconds, "decode": decode_s},
            peak,
        )
        for (tokens, report, peak), engine, row in zip(written, engines, rows, strict=True)
    )


def _decoded(
    filled: Prefill, engines: Sequence[CacheEngine], question: Question, tools: Tools
) -> tuple[tuple[tuple[int, ...], CacheReport, int | None], ...]:
    """Each row's response, a report of its cache before it, and the most bytes held if it was decoded alone.

    The response is the turn's text to follow, if any; else greedy tokens, decoded alone where the batch was not sure.
    """
    model, exact_ids = tools.loaded.model, question.exact_ids
    follow, most = question.turn.follow_ids, question.turn.max_new_tokens
    found: tuple[tuple[int, ...] | None, ...] = (follow or None,) * len(engines)
    if len(engines) > 1 and not follow:
        cache = filled.cache_of(*(engine.states for engine in engines))
        logits = filled.logits.expand(len(engines), -1)
        if exact_ids:
            logits = feed_together(model, cache, len(engines), exact_ids)
        found = greedy_together(model, cache, logits, most, first_is_sure=not exact_ids)
    return tuple(
        _alone(engine, most) if tokens is None else (tokens, engine.started()[0].report(), None)
        for tokens, engine in zip(found, engines, strict=True)
    )


def _alone(engine: CacheEngine, max_new_tokens: int) -> tuple[tuple[int, ...], CacheReport, int]:
    written, report = engine.written(max_new_tokens)
    # A question longer than a stretch is held in full until its own forward ends in a compression.
    return written.tokens, report, max(report.kv_bytes, *written.held)
