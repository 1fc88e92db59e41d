"""Builds parts from syntax trees, checked against the registry, with their canonical text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from kvfw.core.compose.syntax import ListNode, OptionNode, PartNode, parse_part
from kvfw.core.parts.part import Part, PartOption, default_text, part_option, value_text
from kvfw.core.parts.spec import STAGE_KINDS, Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import RequestError, SpecError, UnknownNameError

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Built(Generic[T_co]):
    """A part, or the value of an option, with its canonical text.

    Args:
        value: the part or value.
        text: parses back to an equal value.
        spec: the part's announcement; None for a plain value or a list.
        options: every option of the part, defaults included.
    """

    value: T_co
    text: str
    spec: PartSpec | None = None
    options: Mapping[str, "Built[Any]"] = field(default_factory=dict, repr=False)


def build_part(kind: Kind, text: str, registry: Registry | None = None) -> Built[Part]:
    """The part of the given kind that ``text`` describes; a SpecError shows with a caret where the text is wrong."""
    return PartBuilder(text, registry or default_registry()).part(kind, parse_part(text))


def part_class(spec: PartSpec) -> type[Part]:
    """The class behind a part, imported now.

    Raises:
        RequestError: the import fails, or the target is no part.
    """
    found = spec.load()
    if isinstance(found, type) and issubclass(found, Part):
        return found
    raise RequestError(f"{spec.kind} {spec.name!r} of {spec.provider}: {spec.target} is not a subclass of kvfw.Part")


@dataclass(frozen=True)
class PartBuilder:
    """Builds the parts of one text; ``given`` fills the holes of a recipe."""

    text: str
    registry: Registry
    given: Mapping[str, Built[Any]] = field(default_factory=dict)

    def fail(self, reason: str, at: int) -> SpecError:
        """An error with a caret under the character at ``at``."""
        return SpecError(reason, self.text, at)

    def _filled(self, hole: PartNode) -> Built[Any]:
        name = hole.name.removeprefix("$")
        if name not in self.given:
            raise self.fail(f"there is no option {name!r}", hole.at)
        return self.given[name]

    def part(self, kind: Kind | None, node: PartNode) -> Built[Any]:
        """The part a node describes, or the part that fills a hole; ``kind`` None allows every kind of stage."""
        if node.name.startswith("$"):
            built = self._filled(node)
            if built.spec is None or built.spec.kind not in ((kind,) if kind else STAGE_KINDS):
                raise self.fail(f"{built.text} is no {kind or 'stage'}", node.at)
            return built
        try:
            spec = self.registry.get(kind, node.name) if kind else self.registry.stage(node.name)
        except UnknownNameError as error:
            raise self.fail(str(error), node.at) from None
        cls = part_class(spec)
        written = {option.key: option for option in node.options}
        for option in node.options:
            if option.key not in cls.model_fields:
                raise self.fail(_no_such_option(node.name, option.key, cls), option.at)
        # Plain options that are left out get their default from the part itself.
        options = {
            key: self._option(key, info, written.get(key), node)
            for key, info in cls.model_fields.items()
            if key in written or part_option(info) or info.is_required()
        }
        try:
            part = cls(**{key: option.value for key, option in options.items()})
        except ValidationError as error:
            raise self.fail(f"{node.name}: {_reason(error)}", _fault_at(error, written, node)) from None
        for key, info in cls.model_fields.items():
            options.setdefault(key, Built(getattr(part, key), default_text(info)))
        shown = ",".join(
            f"{key}={options[key].text}"
            for key, info in cls.model_fields.items()
            if options[key].text != default_text(info)
        )
        return Built(part, f"{node.name}({shown})" if shown else node.name, spec, options)

    def _option(self, key: str, info: FieldInfo, option: OptionNode | None, owner: PartNode) -> Built[Any]:
        """The value of one option: as written, or the default part."""
        mark = part_option(info)
        if option is not None:
            return self._held(mark, info, option) if mark else self._plain(info, option, owner.name)
        if mark is None or mark.default is None:
            raise self.fail(
                f"{owner.name} needs {f'a {mark.kind} as an option' if mark else f'option {key!r}'}", owner.at
            )
        # Parsed as if the user had written it.
        text = f"{owner.name}({key}={mark.default})"
        return PartBuilder(text, self.registry)._held(mark, info, parse_part(text).options[0])

    def _held(self, mark: PartOption, info: FieldInfo, option: OptionNode) -> Built[Any]:
        """The part or list of parts an option holds."""
        node = option.value
        if str(node) == "none" and NoneType in get_args(info.annotation):
            return Built(None, "none")
        if not _takes_list(info):
            return self._one(mark.kind, node, option.key)
        if isinstance(node, PartNode) and node.name.startswith("$") and isinstance(self._filled(node).value, tuple):
            return self._filled(node)
        if not isinstance(node, ListNode):
            raise self.fail(f"option {option.key!r} takes a list; write [{node}]", node.at)
        items = [self._one(mark.kind, item, option.key) for item in node.items]
        return Built(tuple(item.value for item in items), f"[{','.join(item.text for item in items)}]")

    def _one(self, kind: Kind, node: PartNode | ListNode, key: str) -> Built[Any]:
        if isinstance(node, ListNode) or not node.name.removeprefix("$").isidentifier():
            raise self.fail(f"option {key!r} takes the name of a {kind}", node.at)
        return self.part(kind, node)

    def _plain(self, info: FieldInfo, option: OptionNode, owner: str) -> Built[Any]:
        """The typed value of a plain option, validated against its field."""
        what, node = f"option {option.key!r} of {owner}", option.value
        raw = self._raw(node, what)
        if raw == "none" and NoneType in get_args(info.annotation):
            return Built(None, "none")
        annotation: Any = info.annotation
        for constraint in info.metadata:
            annotation = Annotated[annotation, constraint]
        try:
            value = TypeAdapter(annotation).validate_python(raw)
        except ValidationError as error:
            wrong = _element(node, error.errors()[0]["loc"])
            if isinstance(node, ListNode) == _takes_list(info):
                reason = _reason(error)
            else:
                reason = f"it takes a list; write [{node}]" if _takes_list(info) else "it takes one value, not a list"
            raise self.fail(f"{what} {'is' if wrong is node else 'has'} {str(wrong)!r}: {reason}", wrong.at) from None
        return Built(value, value_text(value))

    def _raw(self, node: PartNode | ListNode, what: str) -> Any:
        """A plain value before validation: text, a list, or the value of another option."""
        if isinstance(node, ListNode):
            return [self._raw(item, what) for item in node.items]
        built = self._filled(node) if node.name.startswith("$") else Built(node.name, node.name)
        if node.options or built.spec is not None:
            raise self.fail(f"{what} takes a plain value, not a part", node.at)
        return built.value


def _takes_list(info: FieldInfo) -> bool:
    annotation = info.annotation
    return tuple in {get_origin(each) for each in (annotation, *get_args(annotation))}


def _element(node: PartNode | ListNode, place: tuple[int | str, ...]) -> PartNode | ListNode:
    """The list element a validation error is about; the node itself if it is about the whole."""
    for step in place:
        if isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
    return node


def _fault_at(error: ValidationError, written: Mapping[str, OptionNode], node: PartNode) -> int:
    """The place of the value that the part's own validation rejected; the part's place if it names none."""
    place = error.errors()[0]["loc"]
    option = written.get(str(place[0])) if place else None
    return node.at if option is None else _element(option.value, place[1:]).at


def _no_such_option(name: str, key: str, cls: type[Part]) -> str:
    known = ", ".join(f"{key}={default_text(info)}" for key, info in cls.model_fields.items())
    return f"{name} has no option {key!r}; {f'its options and defaults are {known}' if known else 'it has no options'}"


def _reason(error: ValidationError) -> str:
    return "; ".join(str(problem["msg"]).removeprefix("Value error, ") for problem in error.errors())
