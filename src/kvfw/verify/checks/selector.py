"""What holds of a selection, asked for directly."""

import torch
from torch import Tensor

from kvfw.core.parts.spec import Kind
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, Verdict

SELECTORS = frozenset({Kind.SELECTOR})
SHAPE = (2, 2, 30)
BUDGETS = ([[6, 6], [6, 6]], [[1, 1], [1, 1]], [[0, 3], [11, 7]], [[19, 18], [17, 2]])


def _eligible() -> Tensor:
    """20 or more eligible slots of 30 in every head, different ones in each."""
    drawn = torch.rand(SHAPE, generator=torch.Generator().manual_seed(5)).argsort(-1)
    return drawn < torch.tensor([[20, 22], [24, 20]])[..., None]


def _distinct() -> Tensor:
    """Scores without ties, some of them negative."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(6))


def _select(subject: Subject, scores: Tensor, budget: Tensor) -> Tensor:
    return subject.selector.select(scores, budget, _eligible())


def mask(subject: Subject) -> Verdict:
    """A bool mask of the scores' shape."""
    kept = _select(subject, _distinct(), torch.tensor(BUDGETS[0]))
    if tuple(kept.shape) != SHAPE or kept.dtype is not torch.bool:
        return Failed(f"a bool mask of shape {SHAPE}", f"{kept.dtype} of shape {tuple(kept.shape)}")
    return PASSED


def counts(subject: Subject) -> Verdict:
    """Counts for even, uneven and zero budgets."""
    for slots in BUDGETS:
        seen = _select(subject, _distinct(), torch.tensor(slots)).sum(-1).tolist()
        if seen != slots:
            return Failed(f"{slots} slots per row and head", f"{seen}")
    return PASSED


def eligible_only(subject: Subject) -> Verdict:
    """Slots that are not eligible get the most tempting scores there are."""
    for what, tempting in (("infinite", torch.inf), ("minus infinite", -torch.inf)):
        scores = _distinct().masked_fill(~_eligible(), tempting)
        outside = int((_select(subject, scores, torch.tensor(BUDGETS[0])) & ~_eligible()).sum())
        if outside:
            return Failed("eligible slots only, whatever the scores", f"{outside} others kept; their scores: {what}")
    return PASSED


def ties(subject: Subject) -> Verdict:
    """Equal scores must act like scores that fall a little from one slot to the next.

    A selector that does not go for the highest score may read the order from below; then a little rise will do.
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
                return Failed("ties to the lowest position", f"other slots kept ({what}, budget {slots})")
    return PASSED


def inputs_kept(subject: Subject) -> Verdict:
    """Scores, budget and mask."""
    scores, budget, eligible = _distinct(), torch.tensor(BUDGETS[0]), _eligible()
    given = {"scores": scores, "budget": budget, "eligible": eligible}
    return untouched(lambda: subject.selector.select(scores, budget, eligible), given)


PROPERTIES = (
    Property("select-mask", "a selection is a bool mask of the scores' shape", SELECTORS, mask),
    Property("select-count", "exactly the budget is kept in every head", SELECTORS, counts),
    Property("select-eligible", "nothing is kept that is not eligible, whatever its score", SELECTORS, eligible_only),
    Property("select-ties", "ties go to the lowest position", SELECTORS, ties),
    Property("select-pure", "scores, budget and mask are not modified", SELECTORS, inputs_kept),
)
