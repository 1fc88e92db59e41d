"""Runs refiners and holds them to their contract."""

import torch
from jaxtyping import Bool
from torch import Tensor

from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.contracts.parts import Refiner
from kvfw.core.state.observation import Observation
from kvfw.core.state.state import KVState
from kvfw.errors import RunError


def refined(state: KVState, obs: Observation, refiner: Refiner, changed: Bool[Tensor, "B Hkv"]) -> KVState:
    """The state as the refiner gives it, in the heads where compression ``changed`` something.

    Raises:
        RunError: it failed, changed more than values and biases, or gave numbers that are not finite.
    """
    who = f"refiner {type(refiner).__name__} in layer {obs.layer}"
    with blamed(who), torch.no_grad():
        found: object = refiner.refine(state, obs.narrowed(needs_of(refiner, "refiner")))
    if (
        not isinstance(found, KVState)
        or found.values.shape != state.values.shape
        or found.bias.shape != state.bias.shape
    ):
        raise RunError(f"{who} returned no KVState of the same slots")
    same = ("keys", "positions", "mass")
    if not all(torch.equal(getattr(found, name), getattr(state, name)) for name in same):
        raise RunError(f"{who} changed keys, positions or masses; a refiner changes values and biases only")
    valid, here = state.valid, changed[..., None]
    if bool((valid & ~(found.bias.isfinite() & found.values.isfinite().all(-1))).any()):
        raise RunError(f"{who} gave values or biases that are NaN or infinite")
    open_slots = valid & here
    return KVState(
        keys=state.keys,
        values=torch.where(open_slots[..., None], found.values.to(state.values.dtype), state.values),
        positions=state.positions,
        mass=state.mass,
        bias=torch.where(open_slots, found.bias, state.bias),
    )
