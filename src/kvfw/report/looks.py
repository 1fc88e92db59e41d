"""Colours and markers: a method looks the same in every figure, at every amount."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvfw.core.contracts.records import FULL


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn.

    Attributes:
        colour: of areas.
        line: of lines and outlines; the same unless the colour is too pale for a thin line.
        marker: as matplotlib names it.
    """

    colour: str
    line: str
    marker: str


#: Okabe and Ito's palette (2008), told apart by people with any common colour blindness; yellow comes last because
#: it is pale on white.
PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#F0E442")
LINES: Final[Mapping[str, str]] = {"#F0E442": "#A89B00"}
MARKERS: Final = ("s", "^", "D", "v", "P", "X", "<", ">", "h", "p")
FULL_LOOK: Final = Look("#000000", "#000000", "o")
FILLS: Final = ("full", "none", "left", "bottom", "top", "right")
"""Amounts are told apart by how much of the marker is filled, in order of the table."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """The look of every method, decided by the set of texts alone: neither amounts nor order matter.

    Each text prefers a place in the palette; one that is taken gives the next free one, so colours repeat only when
    all are used, and then with another marker.
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
    """The first of the least used from the preferred place on; None if all ``among`` are used more than others."""
    least = min(counts.values())
    turned = [among[(preferred + step) % len(among)] for step in range(len(among))]
    return next((choice for choice in turned if counts[choice] == least), None)
