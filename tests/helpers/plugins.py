"""Plugins as an installed package would bring them: one that works and several that do not."""

from collections.abc import Iterable
from typing import Any

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl

TINY = PartSpec(Kind.SCORER, "tiny", "helpers.parts:Plain", "for a test")


class _Working:
    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        return (TINY,)


class _Raising:
    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        raise ZeroDivisionError("no parts today")


class _HalfWay:
    @hookimpl
    def kvfw_parts(self) -> Iterable[PartSpec]:
        yield PartSpec(Kind.SCORER, "half", "helpers.parts:Plain", "for a test")
        raise ZeroDivisionError("no more parts today")


class _NoSpecs:
    @hookimpl
    def kvfw_parts(self) -> tuple[str, ...]:
        return ("snapkv",)


class _Misspelt:
    @hookimpl
    def kvfw_part(self) -> tuple[PartSpec, ...]:
        return (TINY,)


class _Claiming:
    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        return (PartSpec(Kind.METHOD, "snapkv", "helpers.parts:Plain", "for a test"),)


class _UnknownHook:
    """One hook that exists, one that does not, and one that is meant for another version."""

    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        return (TINY,)

    @hookimpl
    def kvfw_metrics(self) -> None:
        raise AssertionError("no such hook")

    @hookimpl(optionalhook=True)
    def kvfw_later(self) -> None:
        raise AssertionError("no such hook")


class _WrongArguments:
    @hookimpl
    def kvfw_parts(self, registry: object) -> tuple[PartSpec, ...]:
        return (TINY,)


class _Exiting:
    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        raise SystemExit(3)


class _Malformed:
    """Every way to announce a part wrongly, and a sound one between."""

    @hookimpl
    def kvfw_parts(self) -> list[object]:
        return [spec for spec, _ in MALFORMED[:4]] + [TINY] + [spec for spec, _ in MALFORMED[4:]]


def _spec(kind: object, name: object, target: object = TINY.target, summary: object = "for a test") -> PartSpec:
    """As a stranger writes it who runs no type checker."""
    arguments: Any = (kind, name, target, summary)
    return PartSpec(*arguments)


#: Malformed announcements, and words of what is said about each.
MALFORMED: tuple[tuple[object, str], ...] = (
    ("snapkv", "announces 'snapkv' where a PartSpec is expected"),
    (_spec("scorre", "one"), "part 'one' has the unknown kind 'scorre'; kinds: scorer, selector"),
    (_spec(None, "one"), "part 'one' has the unknown kind None"),
    (_spec(Kind.SCORER, "Snap-KV"), "scorer 'Snap-KV' has a name that cannot be written; use lower-case letters"),
    (_spec(Kind.SCORER, "2fast"), "no digit first"),
    (_spec(Kind.SCORER, ""), "scorer '' has a name that cannot be written"),
    (_spec(Kind.SCORER, 7), "scorer 7 has a name that cannot be written"),
    (_spec(Kind.MODEL, "Tiny Model"), "letters, digits, '.', '_' and '-'"),
    (_spec(Kind.METHOD, "full"), "method 'full': that name stands for the uncompressed baseline"),
    (_spec(Kind.MERGER, "one", "helpers.parts"), "target 'helpers.parts'; it must read 'package.module:Name'"),
    (_spec(Kind.MERGER, "one", ""), "target ''; it must read"),
    (_spec(Kind.MERGER, "one", None), "target None; it must read"),
    (_spec(Kind.MERGER, "one", "no_such_package.parts:One"), "no package 'no_such_package' is installed"),
    (_spec(Kind.MERGER, "one", summary=""), "merger 'one' has no summary of one line"),
    (_spec(Kind.MERGER, "one", summary="two\nlines"), "merger 'one' has no summary of one line"),
    (PartSpec(Kind.MODEL, "one", TINY.target, "x", facts={"size": 3}), "facts that are not texts"),  # type: ignore[dict-item]
)


class _Repeating:
    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        return (TINY, PartSpec(Kind.METHOD, "tiny", "helpers.parts:BrokenRecipe", "for a test"))


class _Loose:
    """A kind as plain text is as good as the member of the enumeration."""

    @hookimpl
    def kvfw_parts(self) -> tuple[PartSpec, ...]:
        return (_spec("scorer", "tiny"),)


unknown_hook, wrong_arguments, exiting = _UnknownHook(), _WrongArguments(), _Exiting()
malformed, repeating, loose = _Malformed(), _Repeating(), _Loose()
working, raising, half_way = _Working(), _Raising(), _HalfWay()
no_specs, misspelt, claiming = _NoSpecs(), _Misspelt(), _Claiming()
