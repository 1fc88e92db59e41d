"""What holds of a scorer's scores, asked for directly."""

import torch
from torch import Tensor

from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, Verdict
from kvfw.verify.instruments.observed import observe, random_row, three_rows

SCORERS = frozenset({Kind.SCORER})


def _scores(subject: Subject, dtype: torch.dtype = torch.float32) -> tuple[Observation, Tensor]:
    rows = three_rows() if dtype is torch.float32 else [random_row(40, 7, dtype=dtype)]
    obs = observe(rows, subject.scorer.needs)
    return obs, subject.scorer.score(obs)


def shape(subject: Subject) -> Verdict:
    """One floating-point number per row, KV head and slot."""
    obs, scores = _scores(subject)
    expected = tuple(obs.state.mass.shape)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        seen = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        return Failed(f"a tensor of shape {expected}: one score per row, KV head and slot", f"{seen}")
    if not scores.is_floating_point():
        return Failed("floating-point scores", f"{scores.dtype}")
    return PASSED


def no_nan(subject: Subject) -> Verdict:
    """Every token of the middle can be ranked, in every dtype of the cache."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        obs, scores = _scores(subject, dtype)
        count = int((scores.isnan() & obs.middle).sum())
        if count:
            return Failed(f"a number for every token of the middle, cache in {dtype}", f"{count} NaN")
    return PASSED


def short_prompts(subject: Subject) -> Verdict:
    """A prompt shorter than any window, and one without a middle."""
    for length in (1, 5, 7):
        obs = observe([random_row(length, 7)], subject.scorer.needs)
        scores = subject.scorer.score(obs)
        if tuple(scores.shape) != (1, 2, length) or bool((scores.isnan() & obs.middle).any()):
            return Failed(f"scores of shape (1, 2, {length}) for a prompt of {length} tokens", f"{tuple(scores.shape)}")
    return PASSED


PROPERTIES = (
    Property("score-shape", "one floating-point score per row, KV head and slot", SCORERS, shape),
    Property("score-numbers", "no NaN for a token that has to be ranked", SCORERS, no_nan),
    Property("score-short", "prompts shorter than its window get scores as well", SCORERS, short_prompts),
)
