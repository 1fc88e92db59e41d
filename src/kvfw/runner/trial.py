"""One prompt: prefilled once, compressed, decoded and measured for every row."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvfw.core.metric import Evidence, Metric, Missing, Response
from kvfw.core.records import RowKey, TrialKey, TrialRecord
from kvfw.core.state import KVState
from kvfw.model import decode
from kvfw.model.prefill import Prefill, prefill
from kvfw.runner.prepare import FULL_ROW, Plan, Planned, Row


@dataclass(frozen=True)
class CacheEngine:
    """Runs the model over fresh caches of one trial's states; see :class:`kvfw.core.metric.Engine`."""

    model: PreTrainedModel
    filled: Prefill
    states: dict[int, KVState] = field(repr=False)

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Teacher-forced negative log-likelihoods of tokens 2...T."""
        return decode.continuation_nll(self.model, self.filled.cache_of(self.states), tokens)

    def tokens_per_second(self) -> float:
        """Decode speed."""
        return decode.tokens_per_second(self.model, self.filled.cache_of(self.states), self.filled.logits)


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


def run_prompt(
    plan: Plan,
    planned: Planned,
    missing: tuple[Row, ...],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[TrialRecord]:
    """Records of the ``missing`` rows on one prompt, each as soon as it is measured.

    The prompt is prefilled once. The baseline's response is always made, since metrics compare with it.
    """
    config = plan.config
    filled = prefill(model, planned.prompt.input_ids, plan.needs, sinks=config.sinks, recent=config.recent)
    reference: Response | None = None
    rows = missing if missing[0].key == FULL_ROW else (Row(FULL_ROW, None), *missing)
    for row in rows:
        started = time.perf_counter()
        states = _states(filled, row)
        compressed_s = time.perf_counter() - started
        cache = filled.cache_of(states)
        report = cache.report()
        started = time.perf_counter()
        tokens = decode.greedy(model, cache, filled.logits, config.max_new_tokens)
        decoded_s = time.perf_counter() - started
        del cache
        response = Response(tokens, str(tokenizer.decode(list(tokens), skip_special_tokens=True)))
        if reference is None:
            reference = response
        if row not in missing:
            continue
        evidence = Evidence(
            prompt=planned.prompt,
            response=response,
            reference=reference,
            recalled=plan.task.recalled(response.text, planned.prompt),
            states=states,
            kv_bytes=report.kv_bytes,
            overhead_bytes=report.overhead_bytes,
            timed=planned.timed,
            engine=CacheEngine(model, filled, states),
        )
        seconds = {"prefill": filled.seconds, "compress": compressed_s, "decode": decoded_s}
        slots = [int(n) for layer in report.layers for n in layer.slots]
        yield _record(row, planned, evidence, plan.metrics, seconds, sum(slots) / len(slots))


@torch.inference_mode()
def _states(filled: Prefill, row: Row) -> dict[int, KVState]:
    return filled.full_states() if row.compressor is None else filled.compressed_states(row.compressor)


def _record(
    row: Row,
    planned: Planned,
    evidence: Evidence,
    metrics: tuple[Metric, ...],
    seconds: dict[str, float],
    slots_per_head: float,
) -> TrialRecord:
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for metric in metrics:
        value = metric.measure(evidence)
        if isinstance(value, Missing):
            values[metric.info.name], reasons[metric.info.name] = None, value.reason
        else:
            values[metric.info.name] = value
    context = planned.trial.context_tokens
    return TrialRecord(
        key=trial_key(row.key, planned),
        ratio=row.ratio(context),
        prompt_sha256=planned.sha256,
        answer=planned.prompt.answer,
        response=evidence.response.text,
        metrics=values,
        reasons=reasons,
        seconds=seconds,
        extra={"slots_per_head": slots_per_head, "response_tokens": float(len(evidence.response.tokens))},
    )
