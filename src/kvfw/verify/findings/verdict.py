"""The possible results of a check. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Passed:
    """The property holds; ``note`` has figures worth showing, if any."""

    note: str = ""


@dataclass(frozen=True)
class Failed:
    """The property does not hold.

    Args:
        expected: what the contract requires.
        seen: what the part did.
    """

    expected: str
    seen: str


@dataclass(frozen=True)
class NotApplicable:
    """The property does not apply to this part; ``reason`` says why."""

    reason: str


Verdict = Passed | Failed | NotApplicable
Verdicts = Iterator[Verdict]
