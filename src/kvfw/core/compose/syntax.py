"""The grammar of compositions: parses text to a syntax tree that keeps source positions.

    composition := policy (";" policy)*
    policy      := [ "[" layers "]" ] ( "full" | stages [ "@" allocator ] ("|" refiner)* ) [ "|" codec ]
    layers      := range ("," range)*          0-3 | 16- | -1 | odd | even
    stages      := stage ("+" stage)*
    stage       := part [ ":" share ]
    part        := name [ "(" key "=" value ("," key "=" value)* ")" ]
    value       := scalar | part | "[" [ value ("," value)* ] "]"

Spaces are allowed between tokens. A share is a decimal (``0.8``) or a fraction (``1/3``). Allocators, refiners and
codecs are parts. In a recipe, which is one policy without layers, ``$option`` stands for a value or a part. A name
whose recipe has an allocator, refiners or a codec must be a policy's only stage.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from kvfw.core.compose.budget import fraction_text
from kvfw.core.compose.layers import RANGE, LayerRange
from kvfw.core.parts.spec import BASELINE
from kvfw.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART = re.compile(r"\$?[A-Za-z_][A-Za-z0-9_]*")
_SCALAR = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![A-Za-z_0-9./-])|[A-Za-z0-9_./-]+")
_SHARE = re.compile(r"\d+/\d+|\d*\.\d+|\d+\.?")
#: What may follow stages: an allocator, a refiner or codec, a policy, or (empty) the end.
AFTER_STAGES = ("@", "|", ";", "")
JOINS = "stages are joined by '+', a share follows ':', an allocator '@', a refiner or codec '|', a policy ';'"
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class PartNode:
    """A part with its options in written order, or a plain value, which looks like a part without options.

    ``$name`` is a hole that an option of a recipe fills. ``at`` is the index of the first character.
    """

    name: str
    options: tuple["OptionNode", ...]
    at: int

    def __str__(self) -> str:
        return self.name + (f"({','.join(map(str, self.options))})" if self.options else "")


@dataclass(frozen=True)
class ListNode:
    """``[a,b]`` as written."""

    items: tuple["PartNode | ListNode", ...]
    at: int

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.items))}]"


@dataclass(frozen=True)
class OptionNode:
    """``key=value`` as written."""

    key: str
    value: PartNode | ListNode
    at: int

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class StageNode:
    """A stage as written."""

    part: PartNode
    share: Fraction
    share_at: int


@dataclass(frozen=True)
class PolicyNode:
    """A policy as written: its layers, none for all of them, no stages for ``full``, and what follows each ``|``."""

    layers: tuple[LayerRange, ...]
    stages: tuple[StageNode, ...]
    allocator: PartNode | None
    finishers: tuple[PartNode, ...]
    at: int


class _Reader:
    """Reads the text of one parse from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, reason: str, at: int | None = None) -> SpecError:
        return SpecError(reason, self.text, self.at if at is None else at)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def peek(self) -> str:
        self.skip()
        return self.text[self.at : self.at + 1]

    def take(self, symbol: str) -> bool:
        if self.peek() != symbol:
            return False
        self.at += 1
        return True

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            here = self.peek()
            raise self.fail(f"expected {what}, found {here!r}" if here else f"expected {what}, found the end")
        self.at = found.end()
        return found.group()

    def series(self, read: Callable[[], None], end: str, what: str) -> None:
        while True:
            read()
            if self.take(end):
                return
            if not self.take(","):
                raise self.fail(f"expected ',' or {end!r} after {what}")

    def end(self, hint: str) -> None:
        if self.peek():
            raise self.fail(f"unexpected {self.peek()!r}{hint}")

    def part(self) -> PartNode:
        self.skip()
        at = self.at
        name = self.match(_PART, "the name of a part")
        options: list[OptionNode] = []
        if not name.startswith("$") and self.take("("):
            self.series(lambda: options.append(self.option({option.key for option in options})), ")", "an option")
        return PartNode(name, tuple(options), at)

    def option(self, seen: set[str]) -> OptionNode:
        self.skip()
        at = self.at
        key = self.match(_NAME, "the name of an option")
        if key in seen:
            raise self.fail(f"option {key!r} is given twice", at)
        if not self.take("="):
            raise self.fail(f"expected '=' after option {key!r}")
        return OptionNode(key, self.value(f"a value for option {key!r}"), at)

    def value(self, what: str) -> PartNode | ListNode:
        self.skip()
        at = self.at
        if self.take("["):
            items: list[PartNode | ListNode] = []
            if not self.take("]"):
                self.series(lambda: items.append(self.value("a value of the list")), "]", "a value of a list")
            return ListNode(tuple(items), at)
        scalar = self.match(_SCALAR, what)
        if self.peek() != "(":
            return PartNode(scalar, (), at)
        self.at = at
        return self.part()

    def stage(self) -> StageNode:
        part = self.part()
        if not self.take(":"):
            return StageNode(part, Fraction(0), self.at)  # left out
        self.skip()
        at = self.at
        text = self.match(_SHARE, "a share such as 0.8 or 1/3")
        try:
            share = Fraction(text)
        except ZeroDivisionError:
            raise self.fail(f"share {text} divides by zero", at) from None
        if not 0 < share <= 1:
            raise self.fail(f"share {text} is not above 0 and at most 1", at)
        return StageNode(part, share, at)

    def policy(self) -> PolicyNode:
        self.skip()
        at = self.at
        layers: list[LayerRange] = []
        if self.take("["):
            self.series(lambda: layers.append(self.layers()), "]", "a range of layers")
        stages: tuple[StageNode, ...] = ()
        allocator = None
        if not self.full(bare=bool(layers)):
            stages = self.stages()
            allocator = self.part() if self.take("@") else None
        finishers = []
        while self.take("|"):
            finishers.append(self.part())
        return PolicyNode(tuple(layers), stages, allocator, tuple(finishers), at)

    def full(self, *, bare: bool) -> bool:
        """Takes ``full``, and nothing else; ``bare`` also where no codec follows."""
        self.skip()
        at = self.at
        found = _NAME.match(self.text, at)
        if found is not None and found.group() == BASELINE:
            self.at = found.end()
            if bare or self.peek() == "|":
                return True
        self.at = at
        return False

    def layers(self) -> LayerRange:
        self.skip()
        at = self.at
        text = self.match(RANGE, "layers such as 0-3, 16-, -1, odd or even")
        try:
            return LayerRange(text, at)
        except ValueError as error:
            raise self.fail(str(error), at) from None

    def stages(self) -> tuple[StageNode, ...]:
        stages = [self.stage()]
        while self.take("+"):
            stages.append(self.stage())
        if self.peek() not in AFTER_STAGES:
            raise self.fail(f"unexpected {self.peek()!r}; {JOINS}")
        if len(stages) == 1 and not stages[0].share:
            return (replace(stages[0], share=Fraction(1)),)
        for stage in stages:
            if not stage.share:
                name = stage.part.name
                raise self.fail(f"stage {name!r} needs a share, such as {name}:0.5", stage.share_at)
        total = sum((stage.share for stage in stages), Fraction(0))
        if total != 1:
            shares = " + ".join(fraction_text(stage.share) for stage in stages)
            raise self.fail(f"shares must sum to 1; {shares} = {fraction_text(total)}", stages[-1].share_at)
        return tuple(stages)


def parse_part(text: str) -> PartNode:
    """Parses the whole text as one part; a SpecError has a caret under the first wrong character."""
    reader = _Reader(text)
    part = reader.part()
    reader.end(" after a part")
    return part


def parse_policies(text: str) -> tuple[PolicyNode, ...]:
    """Parses a composition. Shares are in (0, 1] and sum to 1; a single stage may leave its share out.

    Raises:
        SpecError: with a caret under the first wrong character.
    """
    reader = _Reader(text)
    policies = [reader.policy()]
    while reader.take(";"):
        policies.append(reader.policy())
    reader.end(f"; {JOINS}")
    for policy in policies:
        if len(policies) > 1 and not policy.layers:
            raise reader.fail("with several policies each needs its layers, such as [0-3]", policy.at)
    return tuple(policies)
