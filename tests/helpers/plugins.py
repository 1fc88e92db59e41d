"""Plugins as an installed package would bring them: one that works and several that do not."""

from collections.abc import Iterable

from kvfw.core.hookspecs import hookimpl
from kvfw.core.parts import Kind, PartSpec

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


working, raising, half_way = _Working(), _Raising(), _HalfWay()
no_specs, misspelt, claiming = _NoSpecs(), _Misspelt(), _Claiming()
