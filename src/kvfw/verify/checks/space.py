"""Checks that a space's inverse undoes forward and that only keys change."""

from dataclasses import replace

import torch

from kvfw.core.contracts.parts import Space
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs
from kvfw.core.state.rope import Rope
from kvfw.core.state.state import KVState
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts
from kvfw.verify.instruments.observed import KEY_DIM, ROPE, observe, random_row
from kvfw.verify.instruments.states import FIELDS

SPACES = frozenset({Kind.SPACE})
#: Spaces work in float32: forward and inverse round a few products each, 1e-6 of numbers of size 5. A wrong angle or
#: factor is off by far more.
TOLERANCE = 2e-5
WHOLE = torch.linspace(1.0, 0.01, KEY_DIM // 2)
ROPES = {
    "part of the head, attention factor 1.25": ROPE,
    "the whole head": Rope(WHOLE),
    "interleaved pairs": Rope(WHOLE, layout="interleaved"),
    "no rotation": None,
}


def _state(fractional: bool) -> KVState:
    state = observe([random_row(length, length) for length in (20, 15)], Needs()).state
    shift = 0.37 if fractional else 0.0
    return replace(state, positions=torch.where(state.valid, state.positions + shift, state.positions))


@holds("space-inverse", "inverse undoes forward, with every kind of rotation", SPACES)
def there_and_back(subject: Subject) -> Verdicts:
    """Tries whole and fractional positions."""
    space: Space = subject.part
    for what, rope in ROPES.items():
        for fractional in (False, True):
            state = _state(fractional)
            back = space.inverse(space.forward(state, rope), rope)
            if back.keys.shape != state.keys.shape:
                yield Failed(f"keys of shape {tuple(state.keys.shape)}", f"{tuple(back.keys.shape)} ({what})")
            off = float((back.keys - state.keys)[state.valid].abs().max())
            if not off <= TOLERANCE:
                yield Failed(f"keys that come back within {TOLERANCE:g}", f"off by {off:.3g} ({what})")


@holds("space-keys-only", "only keys change: positions, values, masses and biases stay", SPACES)
def keys_only(subject: Subject) -> Verdicts:
    """The input must not change either."""
    space: Space = subject.part
    for what, rope in ROPES.items():
        state = _state(fractional=True)
        copies = [part.clone() for part in state.parts]
        inside = space.forward(state, rope)
        for step, seen in (("forward", inside), ("inverse", space.inverse(inside, rope))):
            for name, now, then in list(zip(FIELDS, seen.parts, copies, strict=True))[1:]:
                if not torch.equal(now, then):
                    yield Failed(f"{step} leaves {name} as they are", f"other {name} ({what})")
        if not torch.equal(state.keys, copies[0]):
            yield Failed("keys of the input that nobody writes to", f"changed ({what})")
