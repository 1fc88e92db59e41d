"""Checks a selector by calling it directly."""

from dataclasses import replace

import torch
from torch import Tensor

from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.parts import Selector
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Observation
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import observe, random_row, tensors_of

SELECTORS = frozenset({Kind.SELECTOR})
SHAPE = (2, 2, 30)
BUDGETS = ([[6, 6], [6, 6]], [[1, 1], [1, 1]], [[0, 3], [11, 7]], [[19, 18], [17, 2]])


def _eligible() -> Tensor:
    """A random mask of 30 slots per head, at least 20 of them eligible."""
    drawn = torch.rand(SHAPE, generator=torch.Generator().manual_seed(5)).argsort(-1)
    return drawn < torch.tensor([[20, 22], [24, 20]])[..., None]


def _distinct() -> Tensor:
    """Scores without ties, some of them negative."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(6))


def _observed(subject: Subject, *, alike: bool = False) -> Observation:
    """Random slots with what the selector needs; ``alike``: all with the same key and value."""
    obs = observe([random_row(SHAPE[-1], seed) for seed in (7, 8)], needs_of(subject.part, "selector"))
    if not alike:
        return obs
    first = [part[:, :, :1].expand_as(part) for part in (obs.state.keys, obs.state.values)]
    return replace(obs, state=replace(obs.state, keys=first[0], values=first[1]))


def _select(subject: Subject, scores: Tensor, budget: Tensor, *, alike: bool = False) -> Tensor:
    selector: Selector = subject.part
    return selector.select(scores, budget, _eligible(), _observed(subject, alike=alike))


@holds("select-mask", "a selection is a bool mask of the scores' shape", SELECTORS)
def mask(subject: Subject) -> Verdicts:
    kept = _select(subject, _distinct(), torch.tensor(BUDGETS[0]))
    if tuple(kept.shape) != SHAPE or kept.dtype is not torch.bool:
        yield Failed(f"a bool mask of shape {SHAPE}", f"{kept.dtype} of shape {tuple(kept.shape)}")


@holds("select-count", "exactly the budget is kept in every head", SELECTORS)
def counts(subject: Subject) -> Verdicts:
    for slots in BUDGETS:
        seen = _select(subject, _distinct(), torch.tensor(slots)).sum(-1).tolist()
        if seen != slots:
            yield Failed(f"{slots} slots per row and head", f"{seen}")


@holds("select-eligible", "nothing is kept that is not eligible, whatever its score", SELECTORS)
def eligible_only(subject: Subject) -> Verdicts:
    """Gives slots that are not eligible infinite scores of either sign."""
    for what, tempting in (("infinite", torch.inf), ("minus infinite", -torch.inf)):
        scores = _distinct().masked_fill(~_eligible(), tempting)
        outside = int((_select(subject, scores, torch.tensor(BUDGETS[0])) & ~_eligible()).sum())
        if outside:
            yield Failed("eligible slots only, whatever the scores", f"{outside} others kept; their scores: {what}")


@holds("select-ties", "ties go to the lowest position", SELECTORS)
def ties(subject: Subject) -> Verdicts:
    """Equal scores must act like scores that fall slightly from slot to slot.

    For a selector that does not keep the highest score, scores that rise slightly will do as well. The slots' keys and
    values are all alike, so that a selector that looks at them as well has no other preference.
    """
    one = torch.ones(2, 2, dtype=torch.int64)
    best = _distinct().masked_fill(~_eligible(), -torch.inf).argmax(-1, keepdim=True)
    highest_first = bool(_select(subject, _distinct(), one, alike=True).gather(-1, best).all())
    slope = torch.arange(SHAPE[-1]) / 1000
    levels = (_distinct() * 2).round()  # half a dozen values, so that most slots share theirs
    for what, tied in (("all scores equal", torch.zeros(SHAPE)), ("few different scores", levels)):
        for slots in BUDGETS:
            budget = torch.tensor(slots)
            kept = _select(subject, tied, budget, alike=True)
            lower = torch.equal(kept, _select(subject, tied - slope, budget, alike=True))
            upper = torch.equal(kept, _select(subject, tied + slope, budget, alike=True))
            if not lower and (highest_first or not upper):
                yield Failed("ties to the lowest position", f"other slots kept ({what}, budget {slots})")


@holds("select-pure", "scores, budget, mask and observation are not modified", SELECTORS)
def inputs_kept(subject: Subject) -> Verdicts:
    scores, budget, eligible = _distinct(), torch.tensor(BUDGETS[0]), _eligible()
    obs = _observed(subject)
    given = {"scores": scores, "budget": budget, "eligible": eligible} | tensors_of(obs)
    return untouched(lambda: subject.part.select(scores, budget, eligible, obs), given)
