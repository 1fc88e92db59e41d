"""A property of the suite: data, with the function that checks it."""

from collections.abc import Callable
from dataclasses import dataclass

from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Verdict

#: Kinds of parts that make a composition, alone or with others.
COMPOSED = frozenset({Kind.SCORER, Kind.SELECTOR, Kind.MERGER, Kind.SPACE, Kind.METHOD, Kind.STAGE})
EVERY_KIND = frozenset(Kind)


@dataclass(frozen=True)
class Property:
    """Something that must hold of every part of some kinds.

    Args:
        id: short name, lower case with hyphens, unique in the suite.
        statement: what holds, in one line.
        kinds: kinds of parts it is about.
        check: looks whether it holds. Whatever it raises counts as a failure.
    """

    id: str
    statement: str
    kinds: frozenset[Kind]
    check: Callable[[Subject], Verdict]
