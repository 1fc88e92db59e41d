"""Checks a scorer by calling it directly."""

import torch
from torch import Tensor

from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import PromptRow, observe, random_row, three_rows

SCORERS = frozenset({Kind.SCORER})


def _scores(subject: Subject, rows: list[PromptRow]) -> tuple[Observation, Tensor]:
    scorer: Scorer = subject.part
    obs = observe(rows, scorer.needs)
    return obs, scorer.score(obs)


@holds("score-shape", "one floating-point score per row, KV head and slot", SCORERS)
def shape(subject: Subject) -> Verdicts:
    obs, scores = _scores(subject, three_rows())
    expected = tuple(obs.state.mass.shape)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        seen = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        yield Failed(f"a tensor of shape {expected}: one score per row, KV head and slot", f"{seen}")
    if not scores.is_floating_point():
        yield Failed("floating-point scores", f"{scores.dtype}")


@holds("score-numbers", "no NaN for a token that has to be ranked", SCORERS)
def no_nan(subject: Subject) -> Verdicts:
    """Looks at the middle, with caches in every dtype."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        obs, scores = _scores(subject, three_rows() if dtype is torch.float32 else [random_row(40, 7, dtype=dtype)])
        count = int((scores.isnan() & obs.middle).sum())
        if count:
            yield Failed(f"a number for every token of the middle, cache in {dtype}", f"{count} NaN")


@holds("score-short", "prompts shorter than its window get scores as well", SCORERS)
def short_prompts(subject: Subject) -> Verdicts:
    """Includes prompts without a middle."""
    for length in (1, 5, 7):
        obs, scores = _scores(subject, [random_row(length, 7)])
        if tuple(scores.shape) != (1, 2, length) or bool((scores.isnan() & obs.middle).any()):
            yield Failed(f"scores of shape (1, 2, {length}) for a prompt of {length} tokens", f"{tuple(scores.shape)}")
