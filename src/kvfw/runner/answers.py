"""What the rows of a table answer to one prompt: compressed one by one, decoded together where that is the same."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import torch

from kvfw.core.metric import Response
from kvfw.core.state import KVState
from kvfw.model import decode
from kvfw.model.cache import CacheReport
from kvfw.model.load import LoadedModel
from kvfw.model.prefill import Prefill
from kvfw.model.sentence import SentenceEncoder
from kvfw.model.together import can_decode_together, feed_together, greedy_together
from kvfw.runner.engine import CacheEngine
from kvfw.runner.prepare import Row

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


def batches(rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """The rows in order, those of one amount together: they hold the same number of slots."""
    for _, same in groupby(rows, key=lambda row: row.key.amount):
        while batch := tuple(islice(same, BATCH_ROWS)):
            yield batch


@torch.inference_mode()
def answers(
    filled: Prefill, rows: Sequence[Row], exact_ids: Sequence[int], max_new_tokens: int, tools: Tools
) -> tuple[Answer, ...]:
    """Compresses a prompt for every row and lets the model answer.

    Args:
        filled: the prompt.
        rows: one batch of :func:`batches`.
        exact_ids: tokens that follow the compressed ones exactly.
        max_new_tokens: longest answer.
        tools: what is loaded.
    """
    engines, compress_s = [], []
    for row in rows:
        started = time.perf_counter()
        states = _states(filled, row)
        compress_s.append(time.perf_counter() - started)
        engines.append(CacheEngine(tools.loaded, filled, states, exact_ids, tools.encoder))
    started = time.perf_counter()
    written = _decoded(filled, engines, exact_ids, max_new_tokens, tools)
    decode_s = (time.perf_counter() - started) / len(rows)
    return tuple(
        Answer(
            Response(tokens, str(tools.loaded.tokenizer.decode(list(tokens), skip_special_tokens=True))),
            engine,
            engine.started()[0].report(),
            {"prefill": filled.seconds, "compress": seconds, "decode": decode_s},
        )
        for tokens, engine, seconds in zip(written, engines, compress_s, strict=True)
    )


def _states(filled: Prefill, row: Row) -> dict[int, KVState]:
    return filled.full_states() if row.compressor is None else filled.compressed_states(row.compressor)


def _decoded(
    filled: Prefill, engines: Sequence[CacheEngine], exact_ids: Sequence[int], max_new_tokens: int, tools: Tools
) -> tuple[tuple[int, ...], ...]:
    """Every row's greedy tokens: from one batch, and alone where the batch was not sure."""
    model = tools.loaded.model
    found: tuple[tuple[int, ...] | None, ...] = (None,) * len(engines)
    if len(engines) > 1 and can_decode_together(model):
        cache = filled.cache_of(*(engine.states for engine in engines))
        logits = filled.logits.expand(len(engines), -1)
        if exact_ids:
            logits = feed_together(model, cache, len(engines), exact_ids)
        found = greedy_together(model, cache, logits, max_new_tokens)
    return tuple(
        decode.greedy(model, *engine.started(), max_new_tokens) if tokens is None else tokens
        for tokens, engine in zip(found, engines, strict=True)
    )
