"""What is kept of one trial, and what is known about a metric.

A trial is one prompt answered once through one composition at one amount of compression. Its record is the
only thing written while an experiment runs; every table is computed from records.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from kvfw.core.parts.spec import BASELINE

SCHEMA: Final = 1
FULL = BASELINE
"""The composition text of the uncompressed baseline."""


def _encodable(text: str) -> str:
    """Refuse half of a surrogate pair here, rather than fail when the record is written."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that UTF-8 cannot hold: {error.reason}") from None
    return text


AnyText = Annotated[str, AfterValidator(_encodable)]
Text = Annotated[str, Field(min_length=1), AfterValidator(_encodable)]


class Frozen(BaseModel):
    """Base of stored models: immutable, no unknown fields, no silent conversions, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RowKey(NamedTuple):
    """What makes one row of a results table."""

    compose: str
    amount: str


class RunKey(NamedTuple):
    """The trials that share one text: the unit over which standard errors are taken."""

    context: int
    seed: int


class PromptKey(NamedTuple):
    """What decides a prompt; trials of different compositions share it."""

    context: int
    depth: float
    seed: int


class TrialKey(Frozen):
    """Names one trial of an experiment. Hashable and ordered; ``full`` sorts before every composition.

    Attributes:
        compose: canonical composition text, or ``"full"``.
        amount: how much compression was asked for, as asked: ``"ratio=4"``, ``"keep=1/4"``, ``"slots=256"``;
            ``"ratio=1"`` for ``full``.
        context: length of the prompt, tokens.
        depth: where the needle stands in the haystack, percent.
        seed: which text and needle.
    """

    compose: Text
    amount: Text
    context: int = Field(ge=1)
    depth: float = Field(ge=0, le=100)
    seed: int

    @property
    def row(self) -> RowKey:
        return RowKey(self.compose, self.amount)

    @property
    def run(self) -> RunKey:
        return RunKey(self.context, self.seed)

    @property
    def prompt(self) -> PromptKey:
        return PromptKey(self.context, self.depth, self.seed)

    @property
    def order(self) -> tuple[bool, RowKey, RunKey, float]:
        return self.compose != FULL, self.row, self.run, self.depth

    def __lt__(self, other: "TrialKey") -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        return f"{self.compose} {self.amount} at {self.context} tokens, depth {self.depth:g} %, seed {self.seed}"


class TrialRecord(Frozen):
    """Everything measured in one trial.

    Attributes:
        key: which trial.
        ratio: how many times smaller the middle of the prompt becomes: as asked for a ratio or a fraction, as it comes
            out for a number of slots. The slots really held are in ``extra``, the bytes in ``metrics``.
        prompt_sha256: of the prompt's text, 64 hex digits; equal for all compositions of one prompt.
        answer: the text that counts as found.
        response: what the model wrote.
        metrics: value by metric name; None where it could not be measured.
        reasons: for each None in ``metrics``, and for nothing else, why.
        seconds: time spent by phase, s.
        extra: further numbers worth keeping (``slots`` …), units in their names.
        vectors: vectors that derived metrics need, by metric; see :func:`vector_text`.

    Raises:
        pydantic.ValidationError: a NaN or infinity, a None without a reason, a reason without a None.
    """

    schema_version: Literal[1] = Field(default=SCHEMA, alias="schema")
    key: TrialKey
    ratio: float | None = Field(gt=0)
    prompt_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    answer: AnyText
    response: AnyText
    metrics: dict[Text, float | None]
    reasons: dict[Text, Text] = Field(default_factory=dict)
    seconds: dict[Text, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    extra: dict[Text, float] = Field(default_factory=dict)
    vectors: dict[Text, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nulls_have_reasons(self) -> "TrialRecord":
        unmeasured = {name for name, value in self.metrics.items() if value is None}
        if unexplained := sorted(unmeasured - self.reasons.keys()):
            raise ValueError(f"null without a reason: {', '.join(unexplained)}")
        if idle := sorted(self.reasons.keys() - unmeasured):
            raise ValueError(f"a reason, but no null metric of that name: {', '.join(idle)}")
        return self


class MetricInfo(Frozen):
    """How a metric is named, shown and judged.

    Attributes:
        name: key in ``TrialRecord.metrics``.
        title: column heading.
        unit: ``"%"`` means stored as a fraction and shown times 100; any other text is shown as it is.
        proportion: each trial is a hit (1) or a miss (0), so that a binomial interval applies.
        digits: decimals shown.
        higher_is_better: None where neither direction is better.
    """

    name: Text
    title: Text
    unit: str = ""
    proportion: bool = False
    digits: int = Field(default=3, ge=0, le=12)
    higher_is_better: bool | None = None


def vector_text(vector: Sequence[float]) -> str:
    """A vector as little-endian float32 in base64: a third of the length of its decimals."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def vector_of(text: str) -> tuple[float, ...]:
    """The vector behind :func:`vector_text`.

    Raises:
        ValueError: the text is none.
    """
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(data) // 4}f", data)
    except (binascii.Error, struct.error) as error:
        raise ValueError(f"not a stored vector: {error}") from None
