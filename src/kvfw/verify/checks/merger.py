"""Checks a merger by calling it directly."""

from dataclasses import replace

import torch
from torch import Tensor

from kvfw.core.compress.merging import MASS_TOLERANCE
from kvfw.core.contracts.parts import Merger
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs
from kvfw.core.state.slots import join, take
from kvfw.core.state.state import KVState
from kvfw.verify.checks.untouched import untouched
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import observe, random_row
from kvfw.verify.instruments.states import FIELDS, brief, head_slots, number_fault, order_fault

MERGERS = frozenset({Kind.MERGER})
LENGTHS = (36, 30)
BUDGETS = ([[9, 9], [9, 9]], [[1, 1], [1, 1]], [[2, 20], [29, 5]], [[35, 35], [29, 29]])


def _slots(seed: int = 3) -> KVState:
    """Two rows of 36 and 30 slots, padded on the left as the merge stage passes them."""
    state = observe([random_row(length, seed + length) for length in LENGTHS], Needs()).state
    return take(state, state.valid)


def _weights(state: KVState) -> Tensor:
    return torch.rand(state.mass.shape, generator=torch.Generator().manual_seed(4)).masked_fill(~state.valid, 0.0)


def _merged_before(state: KVState) -> KVState:
    """The same slots with masses as if an earlier compression had merged some of them."""
    steps = torch.arange(state.width) % 3 + 1.0
    return replace(state, mass=torch.where(state.valid, steps, 0.0))


def _merged(subject: Subject, state: KVState, slots: list[list[int]], weights: Tensor | None = None) -> KVState:
    merger: Merger = subject.part
    return merger.merge(state, _weights(state) if weights is None else weights, torch.tensor(slots))


@holds("merge-count", "as many slots as the budget says in every head", MERGERS)
def count(subject: Subject) -> Verdicts:
    state = _slots()
    for slots in BUDGETS:
        seen = _merged(subject, state, slots).valid.sum(-1).tolist()
        if seen != slots:
            yield Failed(f"{slots} slots per row and head", f"{seen}")


@holds("merge-mass", "masses add up, also of slots merged before", MERGERS)
def mass(subject: Subject) -> Verdicts:
    """The sum may be smaller only for a merger with ``loses_mass``."""
    loses: bool = subject.part.loses_mass
    for what, state in (("tokens", _slots()), ("slots merged before", _merged_before(_slots()))):
        expected = state.mass.sum(-1)
        for slots in BUDGETS:
            seen = _merged(subject, state, slots).mass.sum(-1)
            least = 0.0 if loses else expected * (1 - MASS_TOLERANCE)
            if bool(((seen > expected * (1 + MASS_TOLERANCE)) | (seen < least)).any()):
                most = " or less" if loses else ""
                yield Failed(f"masses that add up to {expected.tolist()}{most} ({what})", f"{seen.tolist()}")


@holds("merge-bias", "slots of equal bias become slots of that bias", MERGERS)
def equal_bias(subject: Subject) -> Verdicts:
    """Not asked of a merger that gives slots biases of its own."""
    if getattr(subject.part, "biases", False):
        return
    state = replace(_slots(), bias=torch.where(_slots().valid, -1.5, -torch.inf))
    for slots in BUDGETS:
        merged = _merged(subject, state, slots)
        if bool(((merged.bias + 1.5).abs() > 1e-4)[merged.valid].any()):
            yield Failed("slots of bias -1.5 where all that went in have it", brief(merged.bias[merged.valid]))


@holds("merge-equal", "tokens of equal key and value merge without changing what attention reads", MERGERS)
def equals(subject: Subject) -> Verdicts:
    """With twins side by side and as many slots less; which of them meet in a slot is the merger's choice.

    So it passes if it loses nothing in one of three cases: every token stands twice, the first does, or the last does.
    The twins of the latter weigh least, and the second of a pair a little more than the first: mergers that keep the
    heaviest tokens keep one of each.
    """
    tokens = _slots().valid.cumsum(-1)
    last = tokens.amax(-1, keepdim=True)
    off = []
    for twins in (tokens > 0, tokens == 1, tokens == last):
        doubled = _slots().valid & twins
        extra = take(_slots(), doubled)
        state = join(replace(extra, positions=torch.where(extra.valid, extra.positions - 0.5, -1.0)), _slots())
        second = torch.arange(state.width) * 1e-4
        light = twins.sum() < tokens.numel() / 2
        alike = (state.keys[..., 1:, :] == state.keys[..., :-1, :]).all(-1) & state.valid[..., 1:]
        paired = torch.nn.functional.pad(alike, (1, 0)) | torch.nn.functional.pad(alike, (0, 1))
        given = torch.where(paired & light, 0.5, 1.0) + second
        merged = _merged(subject, state, (state.valid.sum(-1) - doubled.sum(-1)).tolist(), given * state.valid)
        if not torch.allclose(merged.mass.sum(-1), state.mass.sum(-1)):
            return  # it drops tokens, which says something else already
        off.append(_change(subject, state, merged))
    if min(off) > 1e-3:
        yield Failed("the output over pairs of equal tokens, with each pair one slot", f"it is off by {min(off):.3g}")


def _change(subject: Subject, state: KVState, merged: KVState) -> float:
    """How far attention's output moves, with the logarithms of masses as biases."""
    counted = merged.bias if getattr(subject.part, "biases", False) else merged.mass.log()
    query = torch.tensor([-1.0, 0.0, 1.0])[:, None].expand(3, state.keys.shape[-1])
    outputs = [
        torch.softmax(query @ each.keys.mT + bias[..., None, :], -1) @ each.values
        for each, bias in ((state, state.bias), (merged, counted.masked_fill(~merged.valid, -torch.inf)))
    ]
    return float((outputs[0] - outputs[1]).abs().max())


@holds("merge-order", "positions ascend and stay in range", MERGERS)
def ordered(subject: Subject) -> Verdicts:
    state = _slots()
    for slots in BUDGETS:
        merged = _merged(subject, state, slots)
        beyond = bool((merged.positions > state.positions.amax(-1, keepdim=True) + 1e-3).any())
        if fault := order_fault(merged) or "a position beyond the last slot that went in" * beyond:
            yield Failed("ascending positions, between the first and the last that went in", f"{fault} ({slots})")


@holds("merge-alone", "a slot that stands alone keeps its bits", MERGERS)
def alone(subject: Subject) -> Verdicts:
    """With one slot fewer than tokens, nearly every slot stands alone."""
    state = _slots()
    merged = _merged(subject, state, BUDGETS[-1])
    for row in range(2):
        for head in range(2):
            keys, values, positions, masses, _ = head_slots(merged, row, head)
            old_keys, old_values, old_positions, *_ = head_slots(state, row, head)
            single = masses == 1
            same = (keys[single][:, None] == old_keys).all(-1) & (values[single][:, None] == old_values).all(-1)
            same &= positions[single][:, None] == old_positions
            if not bool(same.any(-1).all()):
                wrong = int((~same.any(-1)).nonzero()[0])
                yield Failed(
                    "a slot that stands alone with the key, value and position it came with",
                    f"row {row}, head {head}: the slot at position {float(positions[single][wrong]):.4g} differs",
                )


@holds("merge-weights", "weights of any size give finite slots", MERGERS)
def weights(subject: Subject) -> Verdicts:
    state = _slots()
    one = torch.zeros_like(state.mass)
    one[..., -1] = 1.0
    cases = {"all 0": torch.zeros_like(one), "all on one slot": one, "very large": _weights(state) * 1e20}
    for what, given in cases.items():
        for slots in BUDGETS:
            if fault := number_fault(_merged(subject, state, slots, given)):
                yield Failed(f"finite slots with weights that are {what}", f"{fault} (budget {slots})")


@holds("merge-pure", "state, weights and budget are not modified", MERGERS)
def inputs_kept(subject: Subject) -> Verdicts:
    state = _slots()
    scores, budget = _weights(state), torch.tensor(BUDGETS[2])
    given = {**dict(zip(FIELDS, state.parts, strict=True)), "weights": scores, "budget": budget}
    return untouched(lambda: subject.part.merge(state, scores, budget), given)
