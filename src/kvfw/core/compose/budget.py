"""All arithmetic that turns a user's amount into slots. Exact: texts become fractions, never floats."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from kvfw.errors import BudgetError

_EXPONENT = re.compile(r"^[^eE]*[eE][-+]?\d{1,2}(e0)?$")

AmountKind = Literal["ratio", "keep", "slots"]


def fraction(text: str | int | float | Fraction, what: str) -> Fraction:
    """The exact value of a number as written: ``"0.1"`` is 1/10. A float counts as its shortest decimal text.

    Raises:
        BudgetError: not a finite number.
    """
    example = {"keep": "0.25 or 1/4", "slots": "256"}.get(what, "4 or 2.5")
    plain = text if isinstance(text, int | Fraction) and not isinstance(text, bool) else str(text).strip()
    try:
        # The fraction of 1e999999999 would have a billion digits.
        if isinstance(plain, str) and (len(plain) > 40 or not _EXPONENT.search(plain + "e0")):
            raise ValueError
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        raise BudgetError(f"{what} is {str(text)[:60]!r}; it must be a number such as {example}") from None


def fraction_text(value: Fraction) -> str:
    """Shortest text that :func:`fraction` reads back exactly: a decimal if a finite one exists, else ``p/q``."""
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    scaled = str(abs(int(value * 10**digits))).rjust(digits + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{scaled[:-digits]}.{scaled[-digits:]}" if digits else str(value.numerator)


@dataclass(frozen=True)
class Amount:
    """How much of a prompt to keep, as the user gave it.

    Args:
        kind: ``ratio``: how many times smaller the middle becomes; ``keep``: the fraction of the middle kept;
            ``slots``: slots per KV head in all, sinks and recent included.
        value: ratio >= 1, 0 < keep <= 1, or a whole number of slots >= 1.

    Raises:
        BudgetError: the value is outside its range.
    """

    kind: AmountKind
    value: Fraction

    def __post_init__(self) -> None:
        if self.kind == "ratio" and self.value < 1:
            raise BudgetError(
                f"ratio is {fraction_text(self.value)}; a ratio says how many times smaller the middle becomes "
                "and must be 1 or more (ratio 4 keeps a quarter)"
            )
        if self.kind == "keep" and not 0 < self.value <= 1:
            raise BudgetError(
                f"keep is {fraction_text(self.value)}; it is a fraction of the middle, above 0 and at most 1"
            )
        if self.kind == "slots" and (self.value < 1 or self.value.denominator != 1):
            raise BudgetError(
                f"slots is {fraction_text(self.value)}; it must be a whole number of slots per KV head, 1 or more"
            )

    @classmethod
    def parse(cls, kind: AmountKind, text: str | int | float | Fraction) -> "Amount":
        """Reads an amount from its text."""
        return cls(kind, fraction(text, kind))

    def __str__(self) -> str:
        return f"{self.kind}={fraction_text(self.value)}"

    def middle_slots(self, middle: int, sinks: int, recent: int) -> int:
        """Average slots per KV head for a middle of M = ``middle`` tokens.

        ``floor(M / ratio)``, ``floor(keep * M)`` or ``slots - sinks - recent``, at most M. 0 without a middle (M = 0):
        then nothing is compressed.

        Raises:
            BudgetError: there is a middle, but no slot for it.
        """
        if middle <= 0:
            return 0
        if self.kind == "ratio":
            slots = middle // self.value
        elif self.kind == "keep":
            slots = int(self.value * middle)
        else:
            slots = int(self.value) - sinks - recent
        if slots < 1:
            raise BudgetError(
                f"{self} leaves {max(slots, 0)} slots for a middle of {middle} tokens ({sinks} sinks and {recent} "
                f"recent tokens are always kept). {self._way_out(middle, sinks, recent)}"
            )
        return min(slots, middle)

    def standing_slots(self, middle: int, sinks: int, recent: int) -> int:
        """Slots per KV head that the middle is brought down to while decoding, after a prompt with ``middle`` tokens.

        ``slots - sinks - recent``, whatever the prompt's length; for ``ratio`` and ``keep`` what the prompt's own
        middle gets (:meth:`middle_slots`). Raises a BudgetError if that leaves no slot.
        """
        if self.kind == "slots":
            self.middle_slots(1, sinks, recent)
            return int(self.value) - sinks - recent
        if middle <= 0:
            raise BudgetError(
                f"{self} is a part of the prompt's middle, and this prompt has none ({sinks} sinks and {recent} recent "
                "tokens are always kept), so there is no size to keep the cache at while decoding. Say slots=, use a "
                "longer prompt, or keep fewer sinks and recent tokens"
            )
        return self.middle_slots(middle, sinks, recent)

    def least_middle(self) -> int:
        """Fewest tokens of a middle that get one slot, given enough slots."""
        if self.kind == "ratio":
            return math.ceil(self.value)
        return math.ceil(1 / self.value) if self.kind == "keep" else 1

    def _way_out(self, middle: int, sinks: int, recent: int) -> str:
        if self.kind == "ratio":
            return f"Use a ratio of at most {middle}, or a longer prompt"
        if self.kind == "keep":
            return f"Use a fraction of at least 1/{middle}, or a longer prompt"
        return f"Use at least {sinks + recent + 1} slots, or fewer sinks and recent tokens"


def amount(
    *, ratio: str | float | Fraction | None = None, slots: int | None = None, keep: str | float | Fraction | None = None
) -> Amount:
    """The one amount that is given.

    Raises:
        BudgetError: none or more than one is given, or its value is out of range.
    """
    given: dict[AmountKind, str | float | Fraction | None] = {"ratio": ratio, "slots": slots, "keep": keep}
    present = [(kind, value) for kind, value in given.items() if value is not None]
    if len(present) != 1:
        said = ", ".join(f"{kind}={value}" for kind, value in present) or "none of them"
        raise BudgetError(f"give exactly one of ratio=, slots= and keep=; got {said}")
    return Amount.parse(*present[0])


@lru_cache(maxsize=4096)
def divide(total: int, shares: tuple[Fraction, ...]) -> tuple[int, ...]:
    """Divides ``total`` slots by shares that sum to 1: largest remainder, ties to the earlier share.

    The parts sum to ``total`` exactly and each is less than one slot away from its exact share.
    """
    exact = [total * share for share in shares]
    floors = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (floors[i] - exact[i], i))
    for i in by_remainder[: total - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def is_count(value: object, least: int = 1) -> bool:
    """Whether it is a whole number of ``least`` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_counts(sinks: int, recent: int) -> None:
    """Raises a BudgetError unless both numbers of protected tokens are whole and 0 or more."""
    for name, value in (("sinks", sinks), ("recent", recent)):
        if not is_count(value, least=0):
            raise BudgetError(f"{name} is {value!r}; it is a whole number of tokens always kept, 0 or more")
