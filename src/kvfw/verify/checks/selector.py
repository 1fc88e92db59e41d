"""Checks a selector by calling it directly."""

import torch
from torch import Tensor

from kvfw.core.contracts.parts import Selector
from kvfw.core.parts.spec import Kind
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts

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


def _select(subject: Subject, scores: Tensor, budget: Tensor) -> Tensor:
    selector: Selector = subject.part
    return selector.select(scores, budget, _eligible())


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

    For a selector that does not keep the highest score, scores that rise slightly will do as well.
    """
    one = torch.ones(2, 2, dtype=torch.int64)
    best = _distinct().masked_fill(~_eligible(), -torch.inf).argmax(-1, keepdim=True)
    highest_first = bool(_select(subject, _distinct(), one).gather(-1, best).all())
    slope = torch.arange(SHAPE[-1]) / 1000
    levels = (_distinct() * 2).round()  # half a dozen values, so that most slots share theirs
    for what, tied in (("all scores equal", torch.zeros(SHAPE)), ("few different scores", levels)):
        for slots in BUDGETS:
            budget = torch.tensor(slots)
            kept = _select(subject, tied, budget)
            lower = torch.equal(kept, _select(subject, tied - slope, budget))
            upper = torch.equal(kept, _select(subject, tied + slope, budget))
            if not lower and (highest_first or not upper):
                yield Failed("ties to the lowest position", f"other slots kept ({what}, budget {slots})")


@holds("select-pure", "scores, budget and mask are not modified", SELECTORS)
def inputs_kept(subject: Subject) -> Verdicts:
    scores, budget, eligible = _distinct(), torch.tensor(BUDGETS[0]), _eligible()
    given = {"scores": scores, "budget": budget, "eligible": eligible}
    return untouched(lambda: subject.part.select(scores, budget, eligible), given)
