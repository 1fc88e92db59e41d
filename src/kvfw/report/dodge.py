"""Places along an axis, in inches, such that markers of equal value stand side by side."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

NEAR_IN: Final = 0.04
"""Values that would be drawn closer than this share a place, side by side."""
STEP_IN: Final = 0.09
"""Between neighbours in a place: a little more than a marker is wide."""
EDGE_IN: Final = 0.1


class Group(NamedTuple):
    """Values that share a place: which, their mean, and the middle of the place, in."""

    members: tuple[int, ...]
    value: float
    middle_in: float


class Places(NamedTuple):
    """Where each value is drawn, in, and the groups from left to right."""

    of_values: tuple[float, ...]
    groups: tuple[Group, ...]


def side_by_side(values: Sequence[float], width_in: float) -> Places:
    """Where to draw each value on an axis of that width; equal values keep their order."""
    largest = max((len(group.members) for group in _groups(values, width_in, EDGE_IN)), default=0)
    margin = min(EDGE_IN + STEP_IN * largest / 2, 0.4 * width_in)
    groups = _groups(values, width_in, margin)
    # Neighbouring groups must not run into each other.
    room = [
        (right.middle_in - left.middle_in) / ((len(left.members) + len(right.members)) / 2 + 0.5)
        for left, right in pairwise(groups)
    ]
    step = min([STEP_IN, *room])
    places = {
        at: group.middle_in + step * (rank - (len(group.members) - 1) / 2)
        for group in groups
        for rank, at in enumerate(group.members)
    }
    return Places(tuple(places[at] for at in range(len(values))), tuple(groups))


def _groups(values: Sequence[float], width_in: float, margin_in: float) -> list[Group]:
    if not values:
        return []
    low, high = min(values), max(values)
    order = sorted(range(len(values)), key=lambda at: (values[at], at))

    def inches(at: int) -> float:
        share = 0.5 if high == low else (values[at] - low) / (high - low)
        return margin_in + share * (width_in - 2 * margin_in)

    members: list[list[int]] = [order[:1]]
    for left, right in pairwise(order):
        if inches(right) - inches(left) <= NEAR_IN:
            members[-1].append(right)
        else:
            members.append([right])
    return [
        Group(tuple(sorted(group)), fmean(values[at] for at in group), fmean(inches(at) for at in group))
        for group in members
    ]


def apart(ticks: Sequence[tuple[float, str]], least_in: float) -> list[tuple[float, str]]:
    """Of ticks from left to right those that leave room for their labels."""
    kept: list[tuple[float, str]] = []
    for place, text in ticks:
        if not kept or place - kept[-1][0] >= least_in:
            kept.append((place, text))
    return kept


def spread(places: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """How far to the right to move each of these places, in, so that none lies on another."""
    groups: list[list[int]] = []
    for at, (x, y) in enumerate(places):
        for group in groups:
            across, up = places[group[0]]
            if abs(x - across) <= NEAR_IN and abs(y - up) <= NEAR_IN:
                group.append(at)
                break
        else:
            groups.append([at])
    shifts = [0.0] * len(places)
    for group in groups:
        middle = fmean(places[at][0] for at in group)
        for rank, at in enumerate(group):
            if len(group) > 1:
                shifts[at] = middle + STEP_IN * (rank - (len(group) - 1) / 2) - places[at][0]
    return tuple(shifts)
