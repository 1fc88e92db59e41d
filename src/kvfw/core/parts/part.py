"""Base classes of parts. Options are frozen pydantic fields, some of which hold another part."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from kvfw.core.parts.spec import Kind


class Part(BaseModel):
    """Base of every part. Fields are the options; instances are immutable and hashable.

    Subclasses hold formulas and options, never state: one instance may serve many models at once.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True, allow_inf_nan=False
    )

    rows_apart: ClassVar[bool] = False
    """For a merger or space: True promises that a row's result is bit for bit independent of the other rows. Such a
    part gets the rows of several layers at once, which is faster."""
    loses_mass: ClassVar[bool] = False
    """For a merger or stage: True if its new slots may stand for fewer tokens than went in, because it drops some."""
    biases: ClassVar[bool] = False
    """For a merger: True if it gives its new slots biases of its own, in place of those that went in."""
    comparable: ClassVar[bool] = False
    """For a scorer: True promises that scores of different heads and layers share a unit (attention, change of an
    output), so that an allocator may rank them together. A scorer that holds others is comparable if they are too."""


@dataclass(frozen=True)
class PartOption:
    """Marks an option that holds a part of this kind: ``Annotated[Scorer, SkipValidation, PartOption(...)]``.

    ``default`` is the composition text of the part used when the option is left out; None makes it required; ``none``,
    for an option that may be None, means no part.
    """

    kind: Kind
    default: str | None = None


class StageForm(Part):
    """Base of the generic stage forms. A stage that consumes all remaining slots can only come last."""

    consumes_rest: ClassVar[bool] = False

    @property
    def ranking(self) -> Any:
        """The scorer that an allocator ranks this stage's tokens by; None if the stage has none."""
        return None


class Method(Part):
    """A named recipe: composition text in which ``$option`` stands for the built option, not for its text.

    The text may be a sum of shares of the method's budget, such as ``snapkv(window=$window):0.8+ewmeans_pre:0.2``, or a
    whole policy, such as ``snapkv(window=$window)@adakv``; then it must be a policy's only stage.
    """

    recipe: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not isinstance(getattr(cls, "recipe", None), str):
            raise TypeError(
                f"method {cls.__name__} needs a class variable `recipe` with the stages or the policy it stands for"
            )


def part_option(info: FieldInfo) -> PartOption | None:
    """The :class:`PartOption` mark of a field, or None for a plain value."""
    return next((mark for mark in info.metadata if isinstance(mark, PartOption)), None)


def default_text(info: FieldInfo) -> str:
    """Canonical text of a field's default; ``"required"`` if it has none."""
    mark = part_option(info)
    if mark is not None:
        return mark.default if mark.default is not None else "required"
    return "required" if info.is_required() else value_text(info.default)


def value_text(value: object) -> str:
    """Canonical composition text of a plain option value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{','.join(map(value_text, value))}]"
    # 10 and 10.0 are the same value of a float option.
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


#: What an allocator looks at: shapes only, one layer's observation, or those of all layers.
Scope = Literal["shape", "layer", "model"]


def scope_of(allocator: object) -> Scope:
    """What an allocator looks at; see :class:`kvfw.core.contracts.parts.Allocator`."""
    scope: Scope = getattr(allocator, "scope", "shape")
    return scope


def ranks_tokens(allocator: object) -> bool:
    """Whether an allocator looks at a scorer's scores; see :class:`kvfw.core.contracts.parts.Allocator`."""
    return scope_of(allocator) != "shape" and bool(getattr(allocator, "ranks", True))


def is_comparable(scorer: object) -> bool:
    """Whether scores of different heads share a unit: its class says so, and so do all scorers it holds."""
    scorers = [part for part in with_held((scorer,)) if part is scorer or hasattr(part, "score")]
    return all(bool(getattr(part, "comparable", False)) for part in scorers)


def with_held(parts: Iterable[object]) -> Iterator[object]:
    """The parts and all parts that they hold in their options."""
    for part in parts:
        yield part
        if isinstance(part, BaseModel):
            held = [each for _, value in part for each in (value if isinstance(value, tuple) else (value,))]
            yield from with_held(each for each in held if hasattr(each, "score") or isinstance(each, BaseModel))
