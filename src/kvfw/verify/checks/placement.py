"""Checks tensors' devices: a part that forgets ``device=`` works on a CPU and fails on an accelerator."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvfw.verify.checks.compression import QUARTER, observed
from kvfw.verify.findings.property import CHANGING, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Passed, Verdicts
from kvfw.verify.instruments.observed import moved
from kvfw.verify.instruments.states import FIELDS

#: Functions that make a new tensor; without ``device=`` it is on the CPU.
FACTORIES: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.arange,
        torch.empty,
        torch.eye,
        torch.full,
        torch.from_numpy,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.tensor,
        torch.tril_indices,
        torch.triu_indices,
        torch.zeros,
    }
)
#: Functions that accept tensors of two devices: torch allows an index on the CPU, and copies cross devices.
CROSSING: frozenset[Callable[..., Any]] = frozenset({Tensor.__getitem__, Tensor.copy_, Tensor.to})


class Placement(TorchFunctionMode):
    """Tracks tensors made without a device, and records where one meets a tensor of the input.

    Ignores tensors without dimensions: torch mixes those across devices. Use an instance for one call only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unplaced: dict[int, Tensor] = {}  # holds the tensors, so that no id is reused
        self.faults: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function and tracks its results."""
        given = [x for x in _tensors((args, kwargs or {})) if x.dim() > 0]
        result = func(*args, **(kwargs or {}))
        stray = [id(x) in self.unplaced for x in given]
        if any(stray) and not all(stray) and func not in CROSSING:
            self.faults.append(getattr(func, "__name__", str(func)))
        wraps = func is torch.as_tensor and not isinstance(args[0], Tensor)
        made_here = (func in FACTORIES or wraps) and (kwargs or {}).get("device") is None
        targets = (*args[1:], *(kwargs or {}).values())
        placed = func is Tensor.to and any(isinstance(x, torch.device | str | Tensor) for x in targets)
        out = {id(x): x for x in _tensors(result) if x.dim() > 0}
        if placed:  # on the same device `to` returns the tensor itself
            self.unplaced = {key: x for key, x in self.unplaced.items() if key not in out}
        elif made_here or (given and all(stray)):
            self.unplaced.update(out)
        return result


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@holds("device", "everything stays on the device of the input", CHANGING)
def device(subject: Subject) -> Verdicts:
    """Tracks tensors made without a device; also runs on a GPU if there is one."""
    bound, obs = subject.bound(), observed(subject)
    with Placement() as placement:
        state = bound.compress(obs, QUARTER)
    if placement.faults:
        yield Failed(
            "tensors made on the input's device (device=...)",
            f"a tensor made without one meets the input in {', '.join(sorted(set(placement.faults)))}",
        )
    places = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for place in places:
        if place != "cpu":
            state = bound.compress(moved(obs, place), QUARTER.to(place))
        for name, part in zip(FIELDS, state.parts, strict=True):
            if part.device.type != place or id(part) in placement.unplaced:
                seen = "made without a device" if id(part) in placement.unplaced else f"on {part.device}"
                yield Failed(f"{name} on the input's device, {place}", seen)
    yield Passed(f"ran on {' and '.join(places)}")
