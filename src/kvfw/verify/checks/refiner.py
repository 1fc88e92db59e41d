"""Checks a refiner by calling it directly."""

import torch

from kvfw.core.contracts.parts import Refiner
from kvfw.core.parts.spec import Kind
from kvfw.core.state.state import KVState
from kvfw.verify.checks.compression import BUDGETS, QUARTER, observed
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import WINDOW_SCORES, Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import observe, three_rows
from kvfw.verify.instruments.states import FIELDS, bit_difference

REFINERS = frozenset({Kind.REFINER})


def _kept(subject: Subject, slots: list[list[int]]) -> KVState:
    """Three prompts, selected by window attention and not refined."""
    selected = subject.bound(WINDOW_SCORES)
    return selected.compress(observe(three_rows(), selected.needs), torch.tensor(slots))


@holds("refine-place", "which slots there are stays: keys, positions and masses, bit for bit", REFINERS)
def in_place(subject: Subject) -> Verdicts:
    """Heads of equal and of different sizes."""
    refiner: Refiner = subject.part
    obs = observed(subject)
    for what, slots in BUDGETS.items():
        state = _kept(subject, slots)
        found = refiner.refine(state, obs)
        if found.values.shape != state.values.shape or found.bias.shape != state.bias.shape:
            yield Failed(f"values and biases for {state.width} slots per head ({what})", f"{found.width} slots")
        for name in ("keys", "positions", "mass"):
            if not torch.equal(getattr(found, name), getattr(state, name)):
                yield Failed("slots with the keys, positions and masses they had", f"other {name} ({what})")


@holds("refine-ratio-1", "heads that kept every token stay as they are, bit for bit", REFINERS)
def ratio_1(subject: Subject) -> Verdicts:
    """All heads, then one head of each row."""
    refiner: Refiner = subject.part
    obs = observed(subject)
    whole = _kept(subject, BUDGETS["more slots than tokens"])
    if difference := bit_difference(whole, refiner.refine(whole, obs)):
        yield Failed("the prompt's own slots where nothing was dropped", difference)
    mixed = _kept(subject, [[40, 9], [32, 9], [25, 9]])
    found = refiner.refine(mixed, obs)
    for name, ours, theirs in zip(FIELDS, found.parts, mixed.parts, strict=True):
        there = mixed.valid[:, 0]
        if not torch.equal(ours[:, 0][there], theirs[:, 0][there]):
            yield Failed("the prompt's own slots in a head that kept all of them", f"other {name}")


@holds("refine-pure", "the state it is given is not modified", REFINERS)
def inputs_kept(subject: Subject) -> Verdicts:
    state, obs = _kept(subject, QUARTER.tolist()), observed(subject)
    return untouched(lambda: subject.part.refine(state, obs), dict(zip(FIELDS, state.parts, strict=True)))
