"""What the rows of a table answer to one prompt: compressed one by one, decoded together where that is the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import torch

from kvfw.core.contracts.metric import Response
from kvfw.core.state.state import KVState
from kvfw.errors import RunError
from kvfw.model.cache.report import CacheReport
from kvfw.model.compat.clock import clock_s
from kvfw.model.load.load import LoadedModel
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run import decode
from kvfw.model.run.batch import can_decode_together, feed_together, greedy_together
from kvfw.model.run.prefill import Prefill
from kvfw.runner.execute.engine import CacheEngine
from kvfw.runner.plan.prepare import Row

#: Most rows decoded at once. It bounds memory: a batch holds its rows' caches twice.
BATCH_ROWS = 16


@dataclass(frozen=True)
class Tools:
    """What is loaded once per run."""

    loaded: LoadedModel
    encoder: SentenceEncoder


@dataclass(frozen=True)
class Answer:
    """What came of one row on one prompt, before metrics.

    ``seconds``: of the prompt's one prefill, this row's compression, and this row's part of its batch's decoding.
    """

    response: Response
    engine: CacheEngine
    report: CacheReport
    seconds: dict[str, float]


def batches(rows: Sequence[Row], most: int) -> Iterator[tuple[Row, ...]]:
    """The rows in order, ``most`` at a time, those of one amount together: they hold the same number of slots."""
    for _, same in groupby(rows, key=lambda row: row.key.amount):
        while batch := tuple(islice(same, most)):
            yield batch


def rows_at_once(tools: Tools) -> int:
    """How many rows are held and decoded at once: one where a batch could not be trusted."""
    return BATCH_ROWS if can_decode_together(tools.loaded.model) else 1


@dataclass(frozen=True)
class Answers:
    """What came of a batch of rows.

    Args:
        done: rows with their answers, in order.
        failed: rows whose parts failed; nothing is known of them.
    """

    done: tuple[tuple[Row, Answer], ...]
    failed: tuple[tuple[Row, RunError], ...]


@torch.inference_mode()
def answers(
    filled: Prefill, rows: Sequence[Row], exact_ids: Sequence[int], max_new_tokens: int, tools: Tools
) -> Answers:
    """Compresses a prompt for every row and lets the model answer. A row that fails takes no other with it.

    Args:
        filled: the prompt.
        rows: one batch of :func:`batches`.
        exact_ids: tokens that follow the compressed ones exactly.
        max_new_tokens: longest answer.
        tools: what is loaded.
    """
    device = tools.loaded.model.device
    ready, engines, compress_s, failed = [], [], [], []
    for row in rows:
        started = clock_s(device)
        try:
            states = _states(filled, row)
        except RunError as error:
            failed.append((row, error))
            continue
        compress_s.append(clock_s(device) - started)
        ready.append(row)
        engines.append(CacheEngine(tools.loaded, filled, states, exact_ids, tools.encoder))
    started = clock_s(device)
    written = _decoded(filled, engines, exact_ids, max_new_tokens, tools)
    decode_s = (clock_s(device) - started) / max(len(ready), 1)
    done = tuple(
        Answer(
            Response(tokens, str(tools.loaded.tokenizer.decode(list(tokens), skip_special_tokens=True))),
            engine,
            report,
            {"prefill": filled.seconds, "compress": seconds, "decode": decode_s},
        )
        for (tokens, report), engine, seconds in zip(written, engines, compress_s, strict=True)
    )
    return Answers(tuple(zip(ready, done, strict=True)), tuple(failed))


def _states(filled: Prefill, row: Row) -> dict[int, KVState]:
    return filled.full_states() if row.compressor is None else filled.compressed_states(row.compressor)


def _decoded(
    filled: Prefill, engines: Sequence[CacheEngine], exact_ids: Sequence[int], max_new_tokens: int, tools: Tools
) -> tuple[tuple[tuple[int, ...], CacheReport], ...]:
    """Every row's greedy tokens, from one batch, and alone where the batch was not sure; and its cache before them."""
    model = tools.loaded.model
    found: tuple[tuple[int, ...] | None, ...] = (None,) * len(engines)
    if len(engines) > 1:
        cache = filled.cache_of(*(engine.states for engine in engines))
        logits = filled.logits.expand(len(engines), -1)
        if exact_ids:
            logits = feed_together(model, cache, len(engines), exact_ids)
        found = greedy_together(model, cache, logits, max_new_tokens, first_is_sure=not exact_ids)
    return tuple(
        _alone(engine, max_new_tokens, tools) if tokens is None else (tokens, engine.started()[0].report())
        for tokens, engine in zip(found, engines, strict=True)
    )


def _alone(engine: CacheEngine, max_new_tokens: int, tools: Tools) -> tuple[tuple[int, ...], CacheReport]:
    cache, logits = engine.started()
    # Before decoding, which lets the cache grow.
    report = cache.report()
    return decode.greedy(tools.loaded.model, cache, logits, max_new_tokens), report
