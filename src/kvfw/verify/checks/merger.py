"""What holds of a merger, asked for directly."""

from dataclasses import replace

import torch
from torch import Tensor

from kvfw.core.compress.merging import MASS_TOLERANCE
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, Verdict
from kvfw.verify.instruments.observed import observe, random_row
from kvfw.verify.instruments.states import FIELDS, brief, head_slots, number_fault, order_fault, parts_of

MERGERS = frozenset({Kind.MERGER})
LENGTHS = (36, 30)
BUDGETS = ([[9, 9], [9, 9]], [[1, 1], [1, 1]], [[2, 20], [29, 5]], [[35, 35], [29, 29]])


def _slots(seed: int = 3) -> KVState:
    """Two rows of 36 and 30 slots, as the merge stage hands them over: blank on the left."""
    state = observe([random_row(length, seed + length) for length in LENGTHS], Needs()).state
    return take(state, state.valid)


def _weights(state: KVState) -> Tensor:
    return torch.rand(state.mass.shape, generator=torch.Generator().manual_seed(4)).masked_fill(~state.valid, 0.0)


def _merged_before(state: KVState) -> KVState:
    """The same slots as if an earlier compression had merged some of them."""
    steps = torch.arange(state.width) % 3 + 1.0
    return replace(state, mass=torch.where(state.valid, steps, 0.0))


def count(subject: Subject) -> Verdict:
    """Valid slots for every budget."""
    state = _slots()
    for slots in BUDGETS:
        seen = subject.merger.merge(state, _weights(state), torch.tensor(slots)).valid.sum(-1).tolist()
        if seen != slots:
            return Failed(f"{slots} slots per row and head", f"{seen}")
    return PASSED


def mass(subject: Subject) -> Verdict:
    """Sums of masses, of fresh tokens and of slots that were merged before; less only where it says so."""
    loses = subject.merger.loses_mass
    for what, state in (("tokens", _slots()), ("slots merged before", _merged_before(_slots()))):
        expected = state.mass.sum(-1)
        for slots in BUDGETS:
            seen = subject.merger.merge(state, _weights(state), torch.tensor(slots)).mass.sum(-1)
            least = 0.0 if loses else expected * (1 - MASS_TOLERANCE)
            if bool(((seen > expected * (1 + MASS_TOLERANCE)) | (seen < least)).any()):
                most = " or less" if loses else ""
                return Failed(f"masses that add up to {expected.tolist()}{most} ({what})", f"{seen.tolist()}")
    return PASSED


def equal_bias(subject: Subject) -> Verdict:
    """Every slot that goes in has the same bias."""
    state = replace(_slots(), bias=torch.where(_slots().valid, -1.5, -torch.inf))
    for slots in BUDGETS:
        merged = subject.merger.merge(state, _weights(state), torch.tensor(slots))
        if bool(((merged.bias + 1.5).abs() > 1e-4)[merged.valid].any()):
            return Failed("slots of bias -1.5 where all that went in have it", brief(merged.bias[merged.valid]))
    return PASSED


def ordered(subject: Subject) -> Verdict:
    """Positions ascend and stay within those that went in."""
    state = _slots()
    for slots in BUDGETS:
        merged = subject.merger.merge(state, _weights(state), torch.tensor(slots))
        fault = order_fault(merged)
        if not fault and bool((merged.positions > state.positions.amax(-1, keepdim=True) + 1e-3).any()):
            fault = "a position beyond the last slot that went in"
        if fault:
            return Failed("ascending positions, between the first and the last that went in", f"{fault} ({slots})")
    return PASSED


def alone(subject: Subject) -> Verdict:
    """Nearly every slot stands alone when all but one may stay: those must keep their bits."""
    state = _slots()
    budget = torch.tensor(BUDGETS[-1])
    merged = subject.merger.merge(state, _weights(state), budget)
    for row in range(2):
        for head in range(2):
            keys, values, positions, masses, _ = head_slots(merged, row, head)
            old_keys, old_values, old_positions, *_ = head_slots(state, row, head)
            single = masses == 1
            same = (keys[single][:, None] == old_keys).all(-1) & (values[single][:, None] == old_values).all(-1)
            same &= positions[single][:, None] == old_positions
            if not bool(same.any(-1).all()):
                wrong = int((~same.any(-1)).nonzero()[0])
                return Failed(
                    "a slot that stands alone with the key, value and position it came with",
                    f"row {row}, head {head}: the slot at position {float(positions[single][wrong]):.4g} differs",
                )
    return PASSED


def weights(subject: Subject) -> Verdict:
    """Weights of any size: none at all, all on one slot, very large."""
    state = _slots()
    one = torch.zeros_like(state.mass)
    one[..., -1] = 1.0
    cases = {"all 0": torch.zeros_like(one), "all on one slot": one, "very large": _weights(state) * 1e20}
    for what, given in cases.items():
        for slots in BUDGETS:
            merged = subject.merger.merge(state, given, torch.tensor(slots))
            fault = number_fault(merged)
            if fault:
                return Failed(f"finite slots with weights that are {what}", f"{fault} (budget {slots})")
    return PASSED


def inputs_kept(subject: Subject) -> Verdict:
    """State, weights and budget."""
    state = _slots()
    scores, budget = _weights(state), torch.tensor(BUDGETS[2])
    given = {**dict(zip(FIELDS, parts_of(state), strict=True)), "weights": scores, "budget": budget}
    return untouched(lambda: subject.merger.merge(state, scores, budget), given)


PROPERTIES = (
    Property("merge-count", "as many slots as the budget says in every head", MERGERS, count),
    Property("merge-mass", "masses add up, also of slots merged before", MERGERS, mass),
    Property("merge-bias", "slots of equal bias become slots of that bias", MERGERS, equal_bias),
    Property("merge-order", "positions ascend and stay in range", MERGERS, ordered),
    Property("merge-alone", "a slot that stands alone keeps its bits", MERGERS, alone),
    Property("merge-weights", "weights of any size give finite slots", MERGERS, weights),
    Property("merge-pure", "state, weights and budget are not modified", MERGERS, inputs_kept),
)
