"""What a check answers. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passed:
    """The property holds.

    Args:
        note: figures worth showing, if any.
    """

    note: str = ""


@dataclass(frozen=True)
class Failed:
    """The property does not hold.

    Args:
        expected: what the contract asks for.
        seen: what the part did.
    """

    expected: str
    seen: str


@dataclass(frozen=True)
class NotApplicable:
    """The property says nothing about this part.

    Args:
        reason: why.
    """

    reason: str


Verdict = Passed | Failed | NotApplicable

PASSED = Passed()
