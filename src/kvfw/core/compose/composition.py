"""Compositions: a syntax tree checked against the registry, with its canonical text."""

from dataclasses import dataclass
from fractions import Fraction
from string import Template
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kvfw.core.compose.budget import fraction_text
from kvfw.core.compose.syntax import OptionNode, PartNode, parse_part, parse_stages
from kvfw.core.parts.part import Method, Part, PartOption, StageForm, default_text, part_option, value_text
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import RequestError, SpecError, UnknownNameError


class Term(BaseModel):
    """One term of a composition.

    Args:
        text: canonical text of the part.
        share: exact share of the budget, in (0, 1].
    """

    model_config = ConfigDict(frozen=True)

    text: str
    share: Fraction

    def __str__(self) -> str:
        return self.text if self.share == 1 else f"{self.text}:{fraction_text(self.share)}"


class Composition(BaseModel):
    """Stages joined by ``+``. Printing it gives the canonical text, which parses back to an equal composition."""

    model_config = ConfigDict(frozen=True)

    stages: tuple[Term, ...]

    def __str__(self) -> str:
        return "+".join(str(stage) for stage in self.stages)


def parse(text: str, registry: Registry | None = None) -> Composition:
    """Reads a composition and checks every name and option in it.

    Args:
        text: such as ``"snapkv:0.8+ewmeans_pre:0.2"``; see :mod:`kvfw.core.compose.syntax`.
        registry: where names are looked up; the installed parts by default.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    found = registry if registry is not None else default_registry()
    nodes = parse_stages(text)
    stages = []
    for i, node in enumerate(nodes):
        assert node.share is not None
        canonical, part = _resolve_stage(node.part, text, found)
        if part.consumes_rest and i + 1 < len(nodes):
            raise SpecError(
                f"stage {node.part.name!r} merges all that is left, so nothing can follow it; put it last",
                text,
                nodes[i + 1].part.at,
            )
        stages.append(Term(text=canonical, share=node.share))
    return Composition(stages=tuple(stages))


def build_stage(text: str, registry: Registry | None = None) -> StageForm:
    """The stage a part's text stands for: a generic form, a method's recipe, or a scorer with top-k.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    found = registry if registry is not None else default_registry()
    return _resolve_stage(parse_part(text), text, found)[1]


def build_part(kind: Kind, text: str, registry: Registry | None = None) -> Part:
    """The part of the given kind that ``text`` describes.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    found = registry if registry is not None else default_registry()
    return _resolve(kind, parse_part(text), text, found).part


def part_text(kind: Kind, text: str, registry: Registry | None = None) -> str:
    """Canonical text of the part of the given kind that ``text`` describes.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    found = registry if registry is not None else default_registry()
    return _resolve(kind, parse_part(text), text, found).canonical


def part_class(spec: PartSpec) -> type[Part]:
    """The class behind a part, imported now.

    Raises:
        RequestError: the module does not import, or holds no such part.
    """
    found = spec.load()
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise RequestError(
            f"{spec.kind} {spec.name!r} of {spec.provider}: {spec.target} is not a subclass of kvfw.Part"
        )
    return found


@dataclass(frozen=True)
class _Resolved:
    """A checked part: its canonical text, the instance, and the full text of each of its options."""

    canonical: str
    part: Part
    option_texts: dict[str, str]


def _resolve_stage(node: PartNode, text: str, registry: Registry) -> tuple[str, StageForm]:
    try:
        spec = registry.stage(node.name)
    except UnknownNameError as error:
        raise SpecError(str(error), text, node.at) from None
    found = _resolve(spec.kind, node, text, registry)
    if isinstance(found.part, StageForm):
        return found.canonical, found.part
    if isinstance(found.part, Method):
        return found.canonical, _recipe_stage(found.part, found.option_texts, spec, registry)
    return found.canonical, build_stage(f"select(scorer={found.canonical})", registry)


def _recipe_stage(method: Method, option_texts: dict[str, str], spec: PartSpec, registry: Registry) -> StageForm:
    """The stage a method's recipe describes, its options filled in."""
    try:
        return build_stage(Template(method.recipe).substitute(option_texts), registry)
    except (KeyError, ValueError, SpecError) as error:
        raise RequestError(f"the recipe of method {spec.name!r} ({spec.provider}) does not work: {error}") from error


def _resolve(kind: Kind, node: PartNode, text: str, registry: Registry) -> _Resolved:
    try:
        cls = part_class(registry.get(kind, node.name))
    except UnknownNameError as error:
        raise SpecError(str(error), text, node.at) from None
    given = {option.key: option for option in node.options}
    for option in node.options:
        if option.key not in cls.model_fields:
            raise SpecError(_no_such_option(node.name, option.key, cls), text, option.at)
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for key, info in cls.model_fields.items():
        mark = part_option(info)
        if mark is not None:
            inner, inner_text = _node_of(given.get(key), mark, node, text)
            nested = _resolve(mark.kind, inner, inner_text, registry)
            values[key], texts[key] = nested.part, nested.canonical
        elif key in given:
            values[key] = _scalar(cls, key, given[key], node.name, text)
            texts[key] = value_text(values[key])
        elif info.is_required():
            raise SpecError(f"{node.name} needs option {key!r}", text, node.at)
        else:
            texts[key] = value_text(info.default)
    try:
        part = cls(**values)
    except ValidationError as error:
        raise SpecError(f"{node.name}: {_reason(error)}", text, _fault_at(error, given, node)) from None
    shown = [f"{key}={texts[key]}" for key, info in cls.model_fields.items() if texts[key] != default_text(info)]
    return _Resolved(node.name + (f"({','.join(shown)})" if shown else ""), part, texts)


def _fault_at(error: ValidationError, given: dict[str, OptionNode], node: PartNode) -> int:
    """Where the value stands that the part's own validation refused; else where the part stands."""
    place = error.errors()[0]["loc"]
    option = given.get(str(place[0])) if place else None
    return node.at if option is None else option.value_at


def _no_such_option(name: str, key: str, cls: type[Part]) -> str:
    known = ", ".join(f"{key}={default_text(info)}" for key, info in cls.model_fields.items())
    return f"{name} has no option {key!r}; " + (
        f"its options and defaults are {known}" if known else "it has no options"
    )


def _node_of(option: OptionNode | None, mark: PartOption, owner: PartNode, text: str) -> tuple[PartNode, str]:
    """The part an option holds, as written or by default, and the text it is written in."""
    if option is not None:
        return _as_part(option, mark.kind, text), text
    if mark.default is None:
        raise SpecError(f"{owner.name} needs a {mark.kind} as an option", text, owner.at)
    return parse_part(mark.default), mark.default


def _as_part(option: OptionNode, kind: Kind, text: str) -> PartNode:
    if isinstance(option.value, PartNode):
        return option.value
    try:
        node = parse_part(option.value)
    except SpecError:
        raise SpecError(f"option {option.key!r} takes the name of a {kind}", text, option.value_at) from None
    return PartNode(node.name, node.options, option.value_at)


def _scalar(cls: type[Part], key: str, option: OptionNode, name: str, text: str) -> Any:
    """The typed value of a plain option; constraints of the field apply."""
    info = cls.model_fields[key]
    if isinstance(option.value, PartNode):
        raise SpecError(f"option {key!r} of {name} takes a plain value, not a part", text, option.value_at)
    if option.value == "none" and NoneType in get_args(info.annotation):
        return None
    try:
        return _adapter(cls, key).validate_python(option.value)
    except ValidationError as error:
        raise SpecError(
            f"option {key!r} of {name} is {option.value!r}: {_reason(error)}", text, option.value_at
        ) from None


def _adapter(cls: type[Part], key: str) -> TypeAdapter[Any]:
    info = cls.model_fields[key]
    annotation: Any = info.annotation
    for mark in info.metadata:
        annotation = Annotated[annotation, mark]
    return TypeAdapter(annotation)


def _reason(error: ValidationError) -> str:
    return "; ".join(str(problem["msg"]).removeprefix("Value error, ") for problem in error.errors())
