"""The grammar of compositions: text to a syntax tree that remembers where everything stood.

    composition := stage ("+" stage)*
    stage       := part [ ":" share ]
    part        := name [ "(" key "=" value ("," key "=" value)* ")" ]
    value       := scalar | part

Spaces are allowed between tokens. A share is a decimal (``0.8``) or a fraction (``1/3``).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from kvfw.core.compose.budget import fraction_text
from kvfw.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![A-Za-z_0-9])|[A-Za-z0-9_./-]+")
_SHARE = re.compile(r"\d+/\d+|\d*\.\d+|\d+\.?")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class PartNode:
    """A part as written: name, options in written order, and the index of its first character."""

    name: str
    options: tuple["OptionNode", ...]
    at: int


@dataclass(frozen=True)
class OptionNode:
    """``key=value`` as written. ``value`` is scalar text, or a part where it has parentheses or is a bare name."""

    key: str
    value: "str | PartNode"
    at: int
    value_at: int


@dataclass(frozen=True)
class StageNode:
    """A stage as written; ``share`` is None where it was left out."""

    part: PartNode
    share: Fraction | None
    share_at: int


class _Reader:
    """Walks over the text. Lives for one parse only."""

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

    def part(self) -> PartNode:
        self.skip()
        at = self.at
        name = self.match(_NAME, "the name of a part")
        options: list[OptionNode] = []
        if self.take("("):
            while True:
                options.append(self.option({option.key for option in options}))
                if self.take(")"):
                    break
                if not self.take(","):
                    raise self.fail("expected ',' or ')' after an option")
        return PartNode(name, tuple(options), at)

    def option(self, seen: set[str]) -> OptionNode:
        self.skip()
        at = self.at
        key = self.match(_NAME, "the name of an option")
        if key in seen:
            raise self.fail(f"option {key!r} is given twice", at)
        if not self.take("="):
            raise self.fail(f"expected '=' after option {key!r}")
        self.skip()
        value_at = self.at
        scalar = self.match(_SCALAR, f"a value for option {key!r}")
        if self.peek() == "(":
            self.at = value_at
            return OptionNode(key, self.part(), at, value_at)
        return OptionNode(key, scalar, at, value_at)

    def stage(self) -> StageNode:
        part = self.part()
        if not self.take(":"):
            return StageNode(part, None, self.at)
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


def parse_part(text: str) -> PartNode:
    """Reads one part, all of the text.

    Raises:
        SpecError: with a caret under the first wrong character.
    """
    reader = _Reader(text)
    part = reader.part()
    if reader.peek():
        raise reader.fail(f"unexpected {reader.peek()!r} after a part")
    return part


def parse_stages(text: str) -> tuple[StageNode, ...]:
    """Reads a composition. Shares are in (0, 1] and sum to 1; a single stage may leave its share out.

    Raises:
        SpecError: with a caret under the first wrong character.
    """
    reader = _Reader(text)
    stages = [reader.stage()]
    while reader.take("+"):
        stages.append(reader.stage())
    if reader.peek():
        raise reader.fail(f"unexpected {reader.peek()!r}; stages are joined by '+', a share follows ':'")
    if len(stages) == 1 and stages[0].share is None:
        return (StageNode(stages[0].part, Fraction(1), stages[0].share_at),)
    for stage in stages:
        if stage.share is None:
            raise reader.fail(f"stage {stage.part.name!r} needs a share, such as {stage.part.name}:0.5", stage.share_at)
    total = sum((stage.share or Fraction(0) for stage in stages), Fraction(0))
    if total != 1:
        shares = " + ".join(fraction_text(stage.share or Fraction(0)) for stage in stages)
        raise reader.fail(f"shares must sum to 1; {shares} = {fraction_text(total)}", stages[-1].share_at)
    return tuple(stages)
