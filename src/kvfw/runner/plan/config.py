"""The settings of an evaluation."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvfw.core.compose.budget import Amount, check_counts
from kvfw.errors import OptionError

#: Settings of each preset; explicit ones win.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "quick": MappingProxyType(
            {"contexts": (1024,), "depths": (10.0, 30.0, 50.0, 70.0, 90.0), "seeds": 1, "ratio": ("4",)}
        ),
        "founding": MappingProxyType(
            {
                "compose": (
                    "uniform",
                    "streaming",
                    "h2o",
                    "snapkv",
                    "ewmeans_post",
                    "ewmeans_pre",
                    "pinned:0.65+ewmeans_post:0.35",
                    "snapkv:0.8+ewmeans_pre:0.2",
                ),
                "contexts": (1024, 2048, 3072),
                "depths": (10.0, 30.0, 50.0, 70.0, 90.0),
                "seeds": 3,
                "ratio": ("4", "8"),
            }
        ),
    }
)

DEFAULT_COMPOSE = "snapkv:0.8+ewmeans_pre:0.2"


class CompressionConfig(BaseModel):
    """Settings shared by all commands that run a model: compositions, amounts and the model itself.

    Attributes:
        compose: compositions.
        ratio, slots, keep: amounts; every composition runs at each. ``ratio``: how many times smaller the middle
            becomes; ``slots``: slots per KV head in total; ``keep``: fraction of the middle. Default: ratio 4.
        sinks, recent: numbers of first and last prompt tokens that are always kept.
        model: embedded name, local folder or hub id.
        dtype, device: ``auto`` is float32 on a CPU, else the checkpoint's dtype; cuda, mps, cpu in this order.
        trust_remote_code: run code that comes with a model.
        prefill_chunk: prefill in chunks of this many tokens, which bounds activation memory; None: all at once.
            Results are the same up to rounding.
        compress_every: also compress while answering, every this many new tokens; None: only the prompt.

    Raises:
        OptionError: an unknown setting, or a value of the wrong type or range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    compose: tuple[str, ...] = (DEFAULT_COMPOSE,)
    ratio: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    sinks: int = 4
    recent: int = 84
    model: str = "smollm2-135m"
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    prefill_chunk: int | None = Field(default=None, ge=1)
    compress_every: int | None = Field(default=None, ge=1)

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            known = ", ".join(type(self).model_fields)
            raise OptionError("; ".join(_explained(dict(problem), known) for problem in error.errors())) from None

    @field_validator("ratio", "slots", "keep", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """Numbers become their text, so that 0.1 is exactly a tenth; a single value becomes a list of one."""
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(str(item) if isinstance(item, int | float | Fraction) else item for item in values)

    @field_validator("compose", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return as_tuple(value)

    def amounts(self) -> tuple[Amount, ...]:
        """All requested amounts, ratio 4 by default. Raises BudgetError if a value is out of range."""
        check_counts(self.sinks, self.recent)
        found = [Amount.parse("ratio", text) for text in self.ratio]
        found += [Amount.parse("slots", text) for text in self.slots]
        found += [Amount.parse("keep", text) for text in self.keep]
        return tuple(dict.fromkeys(found)) or (Amount("ratio", Fraction(4)),)


class EvalConfig(CompressionConfig):
    """The settings of an evaluation. Frozen; ``model_fields_set`` has the given ones, not a preset's or defaults.

    The uncompressed baseline ``full`` is always evaluated too.

    Attributes:
        task: the task, as a part with options.
        contexts, depths, seeds, haystack, begin_answer: shorthand for the task's options of these names; None: as in
            the task's text, or its defaults.
        max_new_tokens: longest response in tokens; None: the task's limit.
        question_aware: compress the prompt with its question; if False, compress only the context and append the rest
            exactly.
        reference: compositions to compare every row with; default: ``full`` and the first composition.
        preset: the preset that some settings came from, if any.
        out: folder of the run; None creates one under ``runs/``.
        resume: resume the run in ``out``.
    """

    task: str = "niah"
    contexts: tuple[int, ...] | None = None
    depths: tuple[float, ...] | None = None
    seeds: int | None = None
    haystack: Path | None = None
    begin_answer: bool | None = None
    max_new_tokens: int | None = Field(default=None, ge=1)
    question_aware: bool = True
    reference: tuple[str, ...] = ()
    preset: str | None = None
    out: Path | None = None
    resume: bool = False

    @field_validator("contexts", "depths", "reference", mode="before")
    @classmethod
    def _grid(cls, value: Any) -> Any:
        return as_tuple(value)

    @classmethod
    def of(cls, given: Mapping[str, Any], preset: str | None = None) -> Self:
        """A configuration from given settings, which override a preset's, which override the defaults.

        Raises:
            OptionError: an unknown preset or setting, or a value of the wrong type or range.
        """
        if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
            raise OptionError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
        base = dict(PRESETS[preset]) if preset is not None else {}
        if any(given.get(kind) for kind in ("slots", "keep", "ratio")):
            base.pop("ratio", None)
        config = cls(**{**base, **given, "preset": preset})
        config.model_fields_set.difference_update(base.keys() - given.keys())
        return config


class GenerateConfig(CompressionConfig):
    """The settings of one answer.

    Attributes:
        prompt: text of the prompt.
        max_new_tokens: longest response in tokens.
        raw: no chat template: the model continues the text.
        temperature: sample tokens from logits divided by it; 0: greedy decoding.
        top_p: sample only from the most likely tokens that together reach this probability.
        seed: seed of the random numbers, used anew for every answer.

    Raises:
        OptionError: also for ``top_p`` or ``seed`` without a temperature.
    """

    prompt: str
    max_new_tokens: int = Field(default=64, ge=1)
    raw: bool = False
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _nothing_drawn(self) -> Self:
        without = [name for name in ("top_p", "seed") if name in self.model_fields_set]
        if self.temperature == 0 and without:
            raise OptionError(
                f"{' and '.join(without)} without a temperature would change nothing: every token is the most likely "
                f"one. Give a temperature above 0, or leave out {' and '.join(without)}"
            )
        return self


def as_tuple(value: Any) -> Any:
    """A single value becomes a tuple of one."""
    return value if value is None or isinstance(value, list | tuple) else (value,)


def _explained(problem: dict[str, Any], known: str) -> str:
    """One line about an invalid setting."""
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name!r}; known: {known}"
    return f"{name} is {problem['input']!r}: {problem['msg']}"
