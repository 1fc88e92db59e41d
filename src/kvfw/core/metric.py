"""Metrics: what one may look at, and what it answers. No torch at import."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from kvfw.core.options import Part
from kvfw.core.records import MetricInfo
from kvfw.core.task import Prompt

if TYPE_CHECKING:
    from kvfw.core.state import KVState


@dataclass(frozen=True)
class Missing:
    """A value that could not be measured.

    Args:
        reason: why, in a few words; shown under tables.
    """

    reason: str


Value = float | Missing


@dataclass(frozen=True)
class Response:
    """What a model wrote.

    Args:
        tokens: ids, the end token included where one was reached.
        text: decoded, special tokens left out.
    """

    tokens: tuple[int, ...]
    text: str


class Engine(Protocol):
    """Runs the model over a fresh copy of the trial's compressed cache, only when a metric asks."""

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Negative log-likelihoods (nats) of tokens 2...T, teacher-forced; empty for fewer than two tokens."""
        ...

    def tokens_per_second(self) -> float:
        """Decode speed at batch 1: 16 steps after 2 warm-up steps."""
        ...


@dataclass(frozen=True)
class Evidence:
    """All that a metric may look at for one trial.

    Args:
        prompt: the prompt.
        response: what the model wrote over the compressed cache.
        reference: what it wrote over the full cache.
        recalled: whether the task calls the response right.
        states: the compressed prompt's slots by layer, before decoding; sliding-window layers are left out.
        kv_bytes: bytes of keys and values of the prompt's cache, all layers.
        overhead_bytes: bytes of positions, masses and biases.
        timed: whether speed is measured in this trial.
        engine: runs the model on demand.
    """

    prompt: Prompt
    response: Response
    reference: Response
    recalled: bool
    states: "Mapping[int, KVState]"
    kv_bytes: int
    overhead_bytes: int
    timed: bool
    engine: Engine


@runtime_checkable
class Metric(Protocol):
    """Measures one number per trial."""

    info: ClassVar[MetricInfo]

    def measure(self, evidence: Evidence) -> Value:
        """The value, or why there is none."""
        ...


class MetricPart(Part):
    """Base of metrics: subclasses set ``info`` and write ``measure``."""

    info: ClassVar[MetricInfo]
