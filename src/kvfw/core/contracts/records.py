"""What is kept of one trial, and what is known about a metric.

A trial is one prompt answered once through one composition at one amount of compression. Its record is the
only thing written while an experiment runs; every table is computed from records.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from kvfw.core.parts.spec import BASELINE

SCHEMA: Final = 2
FULL = BASELINE
"""The composition text of the uncompressed baseline."""

Facet = int | float | str
"""A number or a word to plot and to tabulate by."""


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


class PromptKey(NamedTuple):
    """What decides a prompt; trials of different compositions share it."""

    sample: str
    turn: int


class TrialKey(Frozen):
    """Names one trial of an experiment. Hashable.

    Attributes:
        compose: canonical composition text, or ``"full"``.
        amount: how much compression was asked for, as asked: ``"ratio=4"``, ``"keep=1/4"``, ``"slots=256"``;
            ``"ratio=1"`` for ``full``.
        sample: id of the task's sample.
        turn: which of the sample's questions, from 0.
    """

    compose: Text
    amount: Text
    sample: Text
    turn: int = Field(default=0, ge=0)

    @property
    def row(self) -> RowKey:
        return RowKey(self.compose, self.amount)

    @property
    def prompt(self) -> PromptKey:
        return PromptKey(self.sample, self.turn)

    def __str__(self) -> str:
        question = f", question {self.turn + 1}" if self.turn else ""
        return f"{self.compose} {self.amount} on sample {self.sample}{question}"


class TrialRecord(Frozen):
    """Everything measured in one trial.

    Attributes:
        key: which trial.
        group: what resampling keeps together, see :class:`~kvfw.core.contracts.task.Sample`.
        facets: the sample's facets, in the order they are shown.
        ratio: how many times smaller the middle of the prompt becomes: as asked for a ratio or a fraction, as it comes
            out for a number of slots. The slots really held are in ``extra``, the bytes in ``metrics``.
        prompt_sha256: of the prompt's token ids, 64 hex digits; equal for all compositions of one prompt.
        references: what a right response contains.
        response: what the model wrote.
        metrics: value by name of a score or metric; None where it could not be measured.
        reasons: for each None in ``metrics``, and for nothing else, why.
        seconds: time spent by phase, s.
        extra: further numbers worth keeping (``slots`` …), units in their names.
        vectors: vectors that derived metrics need, by metric; see :func:`vector_text`.

    Records of schema 1, in which a trial was a needle test, are read as trials with the facets ``context``, ``depth``
    and ``seed``.

    Raises:
        pydantic.ValidationError: a NaN or infinity, a None without a reason, a reason without a None.
    """

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    key: TrialKey
    group: Text
    facets: dict[Text, Facet] = Field(default_factory=dict)
    ratio: float | None = Field(gt=0)
    prompt_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    # A list too: reading the schema first turns a line of JSON into Python's values, where a tuple is a list.
    references: tuple[AnyText, ...] = Field(default=(), strict=False)
    response: AnyText
    metrics: dict[Text, float | None]
    reasons: dict[Text, Text] = Field(default_factory=dict)
    seconds: dict[Text, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    extra: dict[Text, float] = Field(default_factory=dict)
    vectors: dict[Text, Text] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_schema_1(cls, data: Any) -> Any:
        return schema_2(data) if isinstance(data, dict) and data.get("schema") == 1 else data

    @model_validator(mode="after")
    def _nulls_have_reasons(self) -> "TrialRecord":
        unmeasured = {name for name, value in self.metrics.items() if value is None}
        if unexplained := sorted(unmeasured - self.reasons.keys()):
            raise ValueError(f"null without a reason: {', '.join(unexplained)}")
        if idle := sorted(self.reasons.keys() - unmeasured):
            raise ValueError(f"a reason, but no null metric of that name: {', '.join(idle)}")
        return self

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts records: ``full`` first, then by row, by facets as numbers and words, by sample and turn."""
        facets = tuple((isinstance(value, str), value) for value in self.facets.values())
        return self.key.compose != FULL, self.key.row, facets, self.key.sample, self.key.turn


def stratum_of(group: str) -> str:
    """What a group is drawn within: ``"1024/0"`` within ``"1024"``; a group without a slash within all."""
    return group.rpartition("/")[0]


def schema_2(data: dict[str, Any]) -> dict[str, Any]:
    """A record of schema 1 as one of schema 2. What is wrong in it stays wrong, for validation to find."""
    new = {name: value for name, value in data.items() if name not in ("schema", "key", "answer")} | {"schema": SCHEMA}
    new["references"] = (data.get("answer"),)
    for table in ("metrics", "reasons"):
        if isinstance(data.get(table), dict):
            new[table] = {RENAMED.get(name, name): value for name, value in data[table].items()}
    key = data.get("key")
    if not isinstance(key, dict):
        return new | {"key": key}
    facets = {name: key.get(name) for name in ("context", "depth", "seed")}
    sample = "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in facets.values())
    rest = {name: value for name, value in key.items() if name not in facets}
    return new | {
        "key": {**rest, "sample": sample},
        "facets": facets,
        "group": f"{key.get('context')}/{key.get('seed')}",
    }


RENAMED: Final = MappingProxyType({"needle_retained": "span_kept"})
"""Metrics that had another name in records of schema 1."""


class MetricInfo(Frozen):
    """How a metric is named, shown and judged.

    Attributes:
        name: key in ``TrialRecord.metrics``.
        title: column heading.
        unit: ``"%"`` means stored as a fraction and shown times 100; any other text is shown as it is.
        proportion: each trial is a hit (1) or a miss (0), so that a binomial interval applies.
        digits: decimals shown.
        higher_is_better: None where neither direction is better.
        primary: of a task's scores, the one that comparisons and figures are about.
    """

    name: Text
    title: Text
    unit: str = ""
    proportion: bool = False
    digits: int = Field(default=3, ge=0, le=12)
    higher_is_better: bool | None = None
    primary: bool = False


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
