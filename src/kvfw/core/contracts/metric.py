"""Metrics: what they may look at, and what they return. No torch at import."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from kvfw.core.contracts.records import MetricInfo, TrialKey, TrialRecord
from kvfw.core.contracts.task import Sample, Turn
from kvfw.core.parts.part import Part

if TYPE_CHECKING:
    from kvfw.core.state.state import KVState


@dataclass(frozen=True)
class Missing:
    """A value that could not be measured; ``reason`` says why in a few words and is shown under tables."""

    reason: str


@dataclass(frozen=True)
class Measured:
    """A trial's value and the vector it was computed from, stored under the metric's name for derived metrics.

    The record keeps the vector as float32.
    """

    value: float
    vector: tuple[float, ...]


Value = float | Missing | Measured


@dataclass(frozen=True)
class Response:
    """What a model wrote: token ids, with the end token if it was reached, and text without special tokens."""

    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Shift:
    """How far next-token distributions are from the full cache's, token by token.

    Args:
        kl: Kullback-Leibler divergences ``KL(full || compressed)``, nats, at least 0.
        same: whether both find the same token most likely.
    """

    kl: tuple[float, ...] = ()
    same: tuple[bool, ...] = ()


class Engine(Protocol):
    """Runs models for metrics over a fresh copy of one trial's cache, lazily and once per question."""

    def nll(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Negative log-likelihoods (nats) of a continuation's tokens, teacher-forced over the cache.

        Tokens 2...T in question-aware runs (token 1 comes from the prompt's uncompressed logits), all in
        question-agnostic runs; empty if there are none.
        """

    def shift(self, tokens: tuple[int, ...]) -> Shift:
        """The distributions of a continuation's tokens against the full cache's; the same tokens as in ``nll``.

        Along the full cache's own response it costs no forward beyond that of ``nll``.
        """

    def hidden(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Mean over the inputs y1...y(T-1) of the hidden states after the final norm; empty for one token."""

    def similarity(self, text: str, other: str) -> "float | Missing":
        """Cosine of the sentence embeddings of two texts."""

    def tokens_per_second(self) -> float:
        """Decode speed at batch 1: 16 steps after 2 warm-up steps."""


@dataclass(frozen=True)
class Evidence:
    """All that a metric may look at for one trial.

    Args:
        sample, turn: the question and its context.
        response: what the model wrote over the compressed cache.
        reference: what it wrote over the full cache.
        states: the compressed slots by layer, before decoding; sliding-window layers are left out.
        positions_kept: whether exact slots are still at their tokens' positions in the prompt.
        kv_bytes: bytes of keys and values of the prompt's cache, all layers.
        overhead_bytes: bytes of positions, masses and biases.
        timed: whether speed is measured in this trial.
        engine: works over the compressed cache.
        reference_engine: works over the full cache.
        peak_bytes: the most bytes of keys and values held between forwards, from the prompt's compression on; None if
            that is not known.
    """

    sample: Sample
    turn: Turn
    response: Response
    reference: Response
    states: "Mapping[int, KVState]"
    positions_kept: bool
    kv_bytes: int
    overhead_bytes: int
    timed: bool
    engine: Engine
    reference_engine: Engine
    peak_bytes: int | None = None


@runtime_checkable
class Metric(Protocol):
    """Measures one number per trial."""

    info: ClassVar[MetricInfo]

    def measure(self, evidence: Evidence) -> Value:
        """The value, or why there is none."""


class MetricPart(Part):
    """Base of metrics: subclasses set ``info`` and write ``measure``.

    ``only_with``: a setting of ``kvfw eval`` without which the metric is not measured, such as ``"compress_every"``.
    """

    only_with: ClassVar[str] = ""

    if TYPE_CHECKING:  # so that a type checker notices a missing info; at run time such a metric is left out by name

        @property
        @abstractmethod
        def info(self) -> MetricInfo:
            """How the metric is named, shown and judged: a class variable of every metric."""
    else:
        info: ClassVar[MetricInfo]


@runtime_checkable
class DerivedMetric(Protocol):
    """A metric whose values need the whole run: computed from the records, never stored in them."""

    info: ClassVar[MetricInfo]

    def derive(self, records: Sequence[TrialRecord]) -> Mapping[TrialKey, float | Missing]:
        """The value of every trial, or why there is none."""
