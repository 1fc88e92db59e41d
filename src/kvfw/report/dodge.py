"""Positions along an axis, in inches, that put markers of equal value side by side."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

NEAR_IN: Final = 0.04
"""Values that would be drawn closer than this share a place, side by side."""
STEP_IN: Final = 0.09
"""Distance between neighbours in a place: a little more than a marker's width."""
EDGE_IN: Final = 0.1


class Group(NamedTuple):
    """Values that share a place: their indices, their mean, and the middle of the place in inches."""

    members: tuple[int, ...]
    value: float
    middle_in: float


class Places(NamedTuple):
    """The position of each value; the groups from left to right; the step between neighbours in a group. Inches."""

    of_values: tuple[float, ...]
    groups: tuple[Group, ...]
    step_in: float


def side_by_side(values: Sequence[float], width_in: float) -> Places:
    """Where to draw each value on an axis of that width; equal values keep their order."""
    # The outermost groups need room for half of their markers; a first pass finds their sizes.
    first = _groups(values, width_in, (EDGE_IN, EDGE_IN))
    ends = [min(EDGE_IN + STEP_IN * len(group.members) / 2, 0.4 * width_in) for group in (*first[:1], *first[-1:])]
    groups = _groups(values, width_in, (ends[0], ends[1])) if first else []
    # Neighbouring groups must not overlap.
    room = [
        (right.middle_in - left.middle_in) / ((len(left.members) + len(right.members)) / 2 + 1)
        for left, right in pairwise(groups)
    ]
    step = min([STEP_IN, *room])
    places = {
        at: group.middle_in + step * (rank - (len(group.members) - 1) / 2)
        for group in groups
        for rank, at in enumerate(group.members)
    }
    return Places(tuple(places[at] for at in range(len(values))), tuple(groups), step)


def _groups(values: Sequence[float], width_in: float, margins_in: tuple[float, float]) -> list[Group]:
    if not values:
        return []
    low, high = min(values), max(values)
    left_in, right_in = margins_in
    order = sorted(range(len(values)), key=lambda at: (values[at], at))

    def inches(at: int) -> float:
        share = 0.5 if high == low else (values[at] - low) / (high - low)
        return left_in + share * (width_in - left_in - right_in)

    members: list[list[int]] = [order[:1]]
    for left, right in pairwise(order):
        if inches(right) - inches(left) <= NEAR_IN:
            members[-1].append(right)
        else:
            members.append([right])
    return [
        Group(tuple(group), fmean(values[at] for at in group), fmean(inches(at) for at in group)) for group in members
    ]


def apart(ticks: Sequence[tuple[float, str]], least_in: float) -> list[tuple[float, str]]:
    """Those of the ticks, from left to right, that leave room for their labels."""
    kept: list[tuple[float, str]] = []
    for place, text in ticks:
        if not kept or place - kept[-1][0] >= least_in:
            kept.append((place, text))
    return kept


def spread(places: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """How far to move each of these places to the right, in inches, so that none covers another."""
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
