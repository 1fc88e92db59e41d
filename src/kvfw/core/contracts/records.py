"""The record of one trial, and the description of a metric.

A trial is one prompt answered once with one composition at one amount of compression. Records are the only thing
written while an experiment runs; every table is computed from them.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from kvfw.core.contracts.task import facet_text
from kvfw.core.parts.spec import BASELINE

SCHEMA: Final = 2
FULL = BASELINE
"""The composition text of the uncompressed baseline."""

Facet = int | float | str
"""A number or a word to plot and tabulate by."""


def _encodable(text: str) -> str:
    """Rejects half of a surrogate pair here rather than when the record is written."""
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
    """Identifies a row of a results table."""

    compose: str
    amount: str


class PromptKey(NamedTuple):
    """Identifies a prompt, which trials of different compositions share."""

    sample: str
    turn: int


class TrialKey(Frozen):
    """Identifies one trial of an experiment. Hashable.

    Attributes:
        compose: canonical composition text, or ``"full"``.
        amount: the amount as requested: ``"ratio=4"``, ``"keep=1/4"``, ``"slots=256"``; ``"ratio=1"`` for ``full``.
        sample: id of the task's sample.
        turn: index of the sample's question, from 0.
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
        group: samples that resampling keeps together, see :class:`~kvfw.core.contracts.task.Sample`.
        facets: the sample's facets, in display order.
        ratio: how many times smaller the middle of the prompt becomes: as requested for a ratio or fraction, as
            computed for a number of slots. ``extra`` has the slots actually held, ``metrics`` the bytes.
        prompt_sha256: of the prompt's token ids, 64 hex digits; equal for all compositions of one prompt.
        references: what a right response contains.
        response: what the model wrote.
        metrics: values by score or metric name; None if it could not be measured.
        reasons: why, for exactly the metrics that are None.
        seconds: time by phase, s.
        extra: further numbers (``slots`` …), units in their names.
        vectors: vectors for derived metrics, by metric; see :func:`vector_text`.

    Records of schema 1 (needle tests) are read as trials with the facets ``context``, ``depth`` and ``seed``.

    Raises:
        pydantic.ValidationError: a NaN or infinity, a None without a reason, a reason without a None.
    """

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    key: TrialKey
    group: Text
    facets: dict[Text, Facet] = Field(default_factory=dict)
    ratio: float | None = Field(gt=0)
    prompt_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    # Not strict, to allow a list: JSON is parsed to Python values before the schema is read.
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
        """Sort key: ``full`` first, then by row, facets (numbers before words), sample and turn."""
        facets = tuple((isinstance(value, str), value) for value in self.facets.values())
        return self.key.compose != FULL, self.key.row, facets, self.key.sample, self.key.turn


def stratum_of(group: str) -> str:
    """The stratum a group is resampled in: ``"1024"`` for ``"1024/0"``; empty (all groups) without a slash."""
    return group.rpartition("/")[0]


def schema_2(data: dict[str, Any]) -> dict[str, Any]:
    """Converts a record of schema 1 to schema 2; faults in it are left for validation to find."""
    new = {name: value for name, value in data.items() if name not in ("schema", "key", "answer")} | {"schema": SCHEMA}
    new["references"] = (data.get("answer"),)
    for table in ("metrics", "reasons"):
        if isinstance(data.get(table), dict):
            new[table] = {RENAMED.get(name, name): value for name, value in data[table].items()}
    key = data.get("key")
    if not isinstance(key, dict):
        return new | {"key": key}
    facets: dict[str, Any] = {name: key.get(name) for name in ("context", "depth", "seed")}
    sample = "-".join(facet_text(value) for value in facets.values())
    rest = {name: value for name, value in key.items() if name not in facets}
    group = f"{key.get('context')}/{key.get('seed')}"
    return new | {"key": {**rest, "sample": sample}, "facets": facets, "group": group}


RENAMED: Final = MappingProxyType({"needle_retained": "span_kept"})
"""Metrics that had another name in records of schema 1."""


class MetricInfo(Frozen):
    """How a metric is named, shown and judged.

    Attributes:
        name: key in ``TrialRecord.metrics``.
        title: column heading.
        unit: ``"%"`` means stored as a fraction and shown times 100; any other text is shown unchanged.
        proportion: each trial is a hit (1) or a miss (0), so a binomial interval applies.
        digits: decimals shown.
        higher_is_better: None if neither direction is better.
        primary: marks the one of a task's scores that comparisons and figures use.
    """

    name: Text
    title: Text
    unit: str = ""
    proportion: bool = False
    digits: int = Field(default=3, ge=0, le=12)
    higher_is_better: bool | None = None
    primary: bool = False


def vector_text(vector: Sequence[float]) -> str:
    """A vector as little-endian float32 in base64, a third as long as its decimals."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def vector_of(text: str) -> tuple[float, ...]:
    """The vector encoded by :func:`vector_text`; other texts raise a ValueError."""
    try:
        data = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(data) // 4}f", data)
    except (binascii.Error, struct.error) as error:
        raise ValueError(f"not a stored vector: {error}") from None
