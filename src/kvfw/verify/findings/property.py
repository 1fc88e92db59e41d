"""A property of the suite: data, with the function that checks it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Verdicts

#: Kinds of parts that make a composition, alone or with others.
COMPOSED = frozenset({Kind.SCORER, Kind.SELECTOR, Kind.MERGER, Kind.SPACE, Kind.METHOD, Kind.STAGE})
#: Kinds whose composition changes slots: those, and refiners.
CHANGING = COMPOSED | {Kind.REFINER}
#: Kinds that run inside a model.
RUNNING = CHANGING | {Kind.ALLOCATOR}
EVERY_KIND = frozenset(Kind)
Check = Callable[[Subject], Verdicts]


@dataclass(frozen=True)
class Property:
    """Something that must hold of every part of some kinds.

    Args:
        id: short name, lower case with hyphens, unique in the suite.
        statement: what holds, in one line.
        kinds: the kinds of parts it applies to.
        check: yields verdicts, of which only the first counts; none means passed, an exception is a failure.
    """

    id: str
    statement: str
    kinds: frozenset[Kind]
    check: Check


def holds(id: str, statement: str, kinds: frozenset[Kind]) -> Callable[[Check], Property]:
    """Decorator that turns a check into a property. The suite runs a module's properties in the order they stand."""
    return partial(Property, id, statement, kinds)
