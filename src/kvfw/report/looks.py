"""Colours and markers: a method looks the same in every figure, at every amount."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvfw.core.contracts.records import FULL


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn: its colour; that of its lines, darker if the colour is pale; its matplotlib marker."""

    colour: str
    line: str
    marker: str


#: Okabe and Ito's palette (2008), distinguishable with any common colour blindness; yellow is last, as it is pale.
PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#F0E442")
LINES: Final[Mapping[str, str]] = {"#F0E442": "#A89B00"}
MARKERS: Final = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "p")
FULL_LOOK: Final = Look("#000000", "#000000", "o")
FILLS: Final = ("full", "none", "left", "bottom", "top", "right")
"""Amounts differ by which part of the marker is filled, in table order."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """The look of every method. It depends only on the set of texts, not on amounts or order.

    Each text has a preferred place in the palette and gets the next free one if that is taken. So colours repeat only
    when all are used, and then with another marker.
    """
    texts = sorted(set(methods))
    found: dict[str, Look] = {text: FULL_LOOK for text in texts if text == FULL}
    colours = dict.fromkeys(PALETTE, 0)
    markers = dict.fromkeys(MARKERS, 0)
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        if text in found:
            continue
        digest = hashlib.sha256(text.encode()).digest()
        colour = _least_used(colours, digest[0], PALETTE[:-1]) or _least_used(colours, digest[0], PALETTE) or PALETTE[0]
        free = {marker: count for marker, count in markers.items() if (colour, marker) not in pairs} or markers
        marker = _least_used(free, digest[1], tuple(free)) or MARKERS[0]
        colours[colour] += 1
        markers[marker] += 1
        pairs.add((colour, marker))
        found[text] = Look(colour, LINES.get(colour, colour), marker)
    return found


def _least_used(counts: Mapping[str, int], preferred: int, among: tuple[str, ...]) -> str | None:
    """The first least used choice from the preferred place on; None if some choice outside ``among`` is used less."""
    least = min(counts.values())
    turned = [among[(preferred + step) % len(among)] for step in range(len(among))]
    return next((choice for choice in turned if counts[choice] == least), None)
