"""Checks what holds of every compression: exact budgets, protected tokens, order, masses, exact tokens."""

from itertools import product

import torch
from torch import Tensor

from kvfw.core.compose.budget import divide
from kvfw.core.compress.merging import MASS_TOLERANCE
from kvfw.core.compress.stages import Merge
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.verify.findings.property import CHANGING, COMPOSED, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts
from kvfw.verify.instruments.observed import LENGTHS, RECENT, SINKS, observe, three_rows
from kvfw.verify.instruments.states import FIELDS, head_slots, number_fault, order_fault

MIDDLES = torch.tensor(LENGTHS) - SINKS - RECENT
#: Slots per row and head, for three prompts whose middles have 40, 32 and 25 tokens.
BUDGETS = {
    "a quarter of the middle": [[10, 10], [8, 8], [6, 6]],
    "one slot": [[1, 1], [1, 1], [1, 1]],
    "unequal heads": [[1, 9], [17, 2], [7, 24]],
    "no slot in one head": [[0, 9], [5, 0], [3, 3]],
    "all but one token": [[39, 39], [31, 31], [24, 24]],
    "more slots than tokens": [[41, 60], [32, 99], [25, 26]],
}
QUARTER = torch.tensor(BUDGETS["a quarter of the middle"])


def observed(subject: Subject) -> Observation:
    """Three prompts, with the observations the part declares in ``needs``."""
    return observe(three_rows(), subject.bound().needs)


def compressed(subject: Subject, budget: Tensor = QUARTER) -> tuple[Observation, KVState]:
    """The three prompts, and their states compressed by the part's composition."""
    obs = observed(subject)
    return obs, subject.bound().compress(obs, budget)


@holds("exact-budget", "every head gets exactly its slots, also 1, 0 and unequal ones", CHANGING)
def exact_budget(subject: Subject) -> Verdicts:
    obs, bound = observed(subject), subject.bound()
    for what, slots in BUDGETS.items():
        budget = torch.tensor(slots)
        counts = bound.compress(obs, budget).valid.sum(-1)
        expected = SINKS + RECENT + torch.minimum(budget, MIDDLES[:, None])
        if not torch.equal(counts, expected):
            wanted = f"{expected.tolist()} slots per row and head ({what}; protected tokens included)"
            yield Failed(wanted, f"{counts.tolist()}")


@holds("ratio-1", "with a slot for every token nothing changes, bit for bit", COMPOSED)
def ratio_1(subject: Subject) -> Verdicts:
    obs = observed(subject)
    budget = MIDDLES[:, None].expand(-1, 2).contiguous()
    state = subject.bound().compress(obs, budget)
    expected = "the prompt's own slots, bit for bit"
    if state.mass.shape != obs.state.mass.shape or not torch.equal(state.valid, obs.state.valid):
        yield Failed(expected, f"{state.valid.sum(-1).tolist()} slots")
    there = state.valid  # keys and values of empty slots may be anything
    for name, ours, theirs in zip(FIELDS, state.parts, obs.state.parts, strict=True):
        if not torch.equal(ours[there], theirs[there]):
            yield Failed(expected, f"{int((ours != theirs)[there].sum())} numbers of {name} differ")


@holds("protected-kept", "sinks and recent tokens are kept as they are", COMPOSED)
def protected_kept(subject: Subject) -> Verdicts:
    """Looks for the value of every sink and recent token in a slot of mass 1."""
    obs, state = compressed(subject)
    for row, head, index in (obs.protected & obs.state.valid).nonzero().tolist():
        _, values, _, mass, _ = head_slots(state, row, head)
        times = int(((values == obs.state.values[row, head, index]).all(-1) & (mass == 1)).sum())
        if times != 1:
            place = int(obs.state.positions[row, head, index])
            yield Failed(
                f"each of the first {SINKS} and last {RECENT} tokens once, with mass 1",
                f"row {row}, head {head}: the token at position {place} is there {times} times",
            )


@holds("order", "positions ascend in every head; at equal positions exact tokens come first", CHANGING)
def order(subject: Subject) -> Verdicts:
    obs, bound = observed(subject), subject.bound()
    for what, slots in BUDGETS.items():
        if fault := order_fault(bound.compress(obs, torch.tensor(slots))):
            yield Failed("positions that ascend in every head, empty slots on the left", f"{fault} ({what})")


@holds("total-mass", "after a merge the slots stand for all tokens of the prompt", COMPOSED)
def total_mass(subject: Subject) -> Verdicts:
    """Looks only at heads where the merging stage has slots: its share of the budget may round to 0."""
    stages = subject.bound().composition.stages
    if not stages[-1].stage.consumes_rest:
        yield NotApplicable("the composition keeps tokens and merges nothing")
    for what in ("a quarter of the middle", "one slot", "unequal heads", "all but one token"):
        _, state = compressed(subject, torch.tensor(BUDGETS[what]))
        mass = state.mass.sum(-1)
        shares = tuple(each.share for each in stages)
        merges = torch.tensor([[divide(slots, shares)[-1] > 0 for slots in row] for row in BUDGETS[what]])
        expected = torch.tensor(LENGTHS, dtype=mass.dtype)[:, None].expand_as(mass)[merges]
        mass = mass[merges]
        less = _loses_mass(subject) and bool((mass <= expected * (1 + MASS_TOLERANCE)).all())
        if not (less or torch.allclose(mass, expected, rtol=MASS_TOLERANCE)):
            yield Failed(f"slots that stand for all {list(LENGTHS)} tokens of each row ({what})", f"{mass.tolist()}")


def _loses_mass(subject: Subject) -> bool:
    stage = subject.bound().stages[-1]
    return stage.loses_mass or (isinstance(stage, Merge) and stage.merger.loses_mass)


@holds("exact-tokens", "a slot of mass 1 is a token of the prompt, bit for bit", COMPOSED)
def exact_tokens(subject: Subject) -> Verdicts:
    """All other slots must have a mass above 1."""
    if subject.rule.policy.refiners:
        yield NotApplicable("its refiners change the slots that stay")
        return
    moves = subject.bound().moves_positions
    for what in ("a quarter of the middle", "unequal heads", "all but one token"):
        obs, state = compressed(subject, torch.tensor(BUDGETS[what]))
        for row, head in product(range(3), range(2)):
            if fault := _exact_fault(head_slots(obs.state, row, head), head_slots(state, row, head), moves):
                yield Failed(
                    "mass 1 for exact tokens, bit for bit, and only for them; more for merged slots",
                    f"row {row}, head {head}: {fault} ({what})",
                )


def _exact_fault(tokens: tuple[Tensor, ...], slots: tuple[Tensor, ...], moves: bool) -> str:
    keys, values, positions, mass, bias = slots
    if bool((mass < 1).any()):
        return f"a slot of mass {float(mass.min()):.4g}"
    single = mass == 1
    same = (values[single][:, None] == tokens[1]).all(-1)
    if not moves:  # keys that move are rotated anew, so only the value identifies the token
        same &= (keys[single][:, None] == tokens[0]).all(-1) & (positions[single][:, None] == tokens[2])
    if not bool((same.sum(-1) == 1).all()):
        wrong = int((same.sum(-1) != 1).nonzero()[0])
        return f"the slot of mass 1 at position {float(positions[single][wrong]):.4g} is no token of the prompt"
    if int(same.any(0).sum()) != int(single.sum()):
        return "one token stands in two slots"
    if bool((bias[single] != 0).any()):
        return "an exact token with a bias"
    return ""


@holds("finite", "no NaN and no infinity in the compressed cache", CHANGING)
def finite(subject: Subject) -> Verdicts:
    obs, bound = observed(subject), subject.bound()
    for what, slots in BUDGETS.items():
        if fault := number_fault(bound.compress(obs, torch.tensor(slots))):
            yield Failed("finite numbers in every valid slot", f"{fault} ({what})")
