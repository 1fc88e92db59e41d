"""The settings of an evaluation."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kvfw.core.compose.budget import Amount, check_counts
from kvfw.errors import OptionError

#: What a preset sets; anything given explicitly wins.
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
    """What is compressed, how much, and on which model: what every command that runs a model has in common.

    Attributes:
        compose: compositions.
        ratio, slots, keep: amounts; every composition is used at each. ``ratio``: times smaller the middle becomes;
            ``slots``: slots per KV head in all; ``keep``: fraction of the middle. With none given, ratio 4.
        sinks, recent: first and last tokens of the prompt that are always kept.
        model: embedded name, local folder or hub id.
        dtype, device: ``auto`` is float32 on a CPU, the checkpoint's own dtype elsewhere; cuda, mps, cpu in this order.
        trust_remote_code: run code that comes with a model.
        prefill_chunk: prompts are run through the model in pieces of this many tokens, which bounds the memory of
            activations; None: at once. Results are the same up to rounding.

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

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            known = ", ".join(type(self).model_fields)
            raise OptionError("; ".join(_explained(dict(problem), known) for problem in error.errors())) from None

    @field_validator("ratio", "slots", "keep", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """Numbers count as their text, so that 0.1 is a tenth; a single value is a list of one."""
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(str(item) if isinstance(item, int | float | Fraction) else item for item in values)

    @field_validator("compose", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return as_tuple(value)

    def amounts(self) -> tuple[Amount, ...]:
        """Every amount asked for, ratio 4 if none was.

        Raises:
            BudgetError: a value is out of range.
        """
        check_counts(self.sinks, self.recent)
        found = [Amount.parse("ratio", text) for text in self.ratio]
        found += [Amount.parse("slots", text) for text in self.slots]
        found += [Amount.parse("keep", text) for text in self.keep]
        return tuple(dict.fromkeys(found)) or (Amount("ratio", Fraction(4)),)


class EvalConfig(CompressionConfig):
    """What to evaluate, and on what. Frozen; fields that were given are told from defaults by ``model_fields_set``.

    The uncompressed baseline ``full`` is always evaluated too.

    Attributes:
        task: the task, as a part with options.
        contexts, depths, seeds, haystack, begin_answer: shorthand for the task's options of these names; None: as the
            task's text says, or its defaults.
        max_new_tokens: longest response, tokens; None: as long as the task says.
        question_aware: the question is in the prompt when it is compressed; if not, only the context is compressed, and
            what follows it is appended exactly.
        reference: compositions that every row is compared with; none given: ``full`` and the first composition.
        preset: name of the preset some of the settings came from, if any.
        out: folder of the run; None makes a new one under ``runs/``.
        resume: go on with the run in ``out``.
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
        """A configuration from what was given, over a preset, over the defaults.

        Raises:
            OptionError: an unknown preset or setting, or a value of the wrong type or range.
        """
        if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
            raise OptionError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
        base = dict(PRESETS[preset]) if preset is not None else {}
        if any(given.get(kind) for kind in ("slots", "keep", "ratio")):
            base.pop("ratio", None)
        return cls(**{**base, **given, "preset": preset})


class GenerateConfig(CompressionConfig):
    """What to answer, and how.

    Attributes:
        prompt: text of the prompt.
        max_new_tokens: longest response, tokens.
        raw: no chat template: the model continues the text.
        compress_every: also compress while answering, whenever so many tokens were added.
        temperature: tokens are drawn at random, from logits divided by it; 0: always the most likely one.
        top_p: only the most likely tokens that together reach this probability are drawn from.
        seed: where the random numbers start; every answer's start there.

    Raises:
        OptionError: also ``top_p`` or ``seed`` where nothing is drawn.
    """

    prompt: str
    max_new_tokens: int = Field(default=64, ge=1)
    raw: bool = False
    compress_every: int | None = Field(default=None, ge=1)
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
    """A single value is a list of one."""
    return value if value is None or isinstance(value, list | tuple) else (value,)


def _explained(problem: dict[str, Any], known: str) -> str:
    """One line for one wrong setting."""
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name!r}; known: {known}"
    return f"{name} is {problem['input']!r}: {problem['msg']}"
