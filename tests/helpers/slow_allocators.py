"""Allocators read aloud: loops over lists and fractions, one row at a time, nothing shared with kvfw."""

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import mean, variance

from torch import Tensor

from helpers.slow import slow_attention

Layer = Sequence[Sequence[float]]


def slow_rounded(amounts: Sequence[Fraction], total: int, most: Sequence[int]) -> list[int]:
    """Largest remainder: whoever lost most by rounding down is next, the earlier of equals first."""
    found = [min(int(amount), limit) for amount, limit in zip(amounts, most, strict=True)]
    order = sorted(range(len(found)), key=lambda i: (found[i] >= most[i], found[i] - amounts[i], i))
    for i in order[: total - sum(found)]:
        found[i] += 1
    return found


def slow_by_weight(
    weights: Sequence[Fraction], total: int, most: Sequence[int], least: Sequence[Fraction] | None = None
) -> list[int]:
    """The same sum for all, then shares of what is left; whoever is full takes no further part."""
    amounts = [min(Fraction(m), given) for m, given in zip(most, least or [Fraction(0)] * len(most), strict=True)]
    while (left := total - sum(amounts)) > 0:
        open_ = [i for i in range(len(most)) if amounts[i] < most[i]]
        chosen = [i for i in open_ if weights[i] > 0] or open_
        whole = sum((weights[i] for i in chosen), Fraction(0))
        for i in chosen:
            share = weights[i] / whole if whole else Fraction(1, len(chosen))
            amounts[i] = min(Fraction(most[i]), amounts[i] + left * share)
    return slow_rounded(amounts, total, most)


def slow_counts(rows: Sequence[Sequence[float]], total: int) -> list[int]:
    """How many of the highest scores each row holds."""
    ranked = sorted((-score, i, j) for i, row in enumerate(rows) for j, score in enumerate(row))
    return [sum(i == row for _, i, _ in ranked[:total]) for row in range(len(rows))]


def slow_adakv(heads: Layer, total: int, floor: Fraction) -> list[int]:
    counts, held = slow_counts(heads, total), [len(head) for head in heads]
    return slow_by_weight(list(map(Fraction, counts)), total, held, [floor * total / len(heads)] * len(heads))


def slow_held(heads: Layer, each: bool) -> list[Fraction]:
    """The part of a layer's score that its 0, 1, 2, ... highest tokens hold; scores are whole numbers."""
    columns = [[sum(int(x) for x in column) for column in zip(*heads, strict=True)]] if not each else heads
    columns = [head if any(head) else [1] * len(head) for head in columns]
    found = []
    for b in range(len(heads[0]) + 1):
        parts = [
            Fraction(int(sum(sorted(c, reverse=True)[:b])), int(sum(c))) if any(c) else Fraction(0) for c in columns
        ]
        found.append(sum(parts, Fraction(0)) / len(parts))
    return found


def slow_equal_mass(layers: Sequence[Layer], total: int, each: bool) -> list[list[int]]:
    """One slot in every head of the layer that holds least, again and again."""
    held = [slow_held(heads, each) for heads in layers]
    given = [[0] * len(heads) for heads in layers]
    while total > 0:
        room = [i for i, heads in enumerate(layers) if given[i][0] < len(heads[0])]
        poorest = min(room, key=lambda i: (held[i][given[i][0]], given[i][0], i))
        for head in range(min(total, len(layers[poorest]))):
            given[poorest][head] += 1
        total -= len(layers[poorest])
    return given


def maps_of(queries: Tensor, keys: Tensor, scale: float, window: int) -> list[list[list[float]]]:
    """The last rows of the attention of every query head ``[H, L, D]`` to its KV head ``[Hkv, L, D]``."""
    group = len(queries) // len(keys)
    return [slow_attention(head.double(), keys[i // group].double(), scale)[-window:] for i, head in enumerate(queries)]


def slow_preference(maps: Sequence[Sequence[Sequence[float]]], tau1: float, tau2: float) -> float:
    """CAKE's preference of a layer."""
    before = len(maps[0][0]) - len(maps[0])
    entropy = -sum(a * math.log(a) for rows in maps for row in rows for a in row[:before] if a > 0)
    shifts = sum(variance(row[j] for row in rows) for rows in maps for j in range(before))
    return float(entropy ** (1 / tau1) * shifts ** (1 / tau2))


def slow_tokens_needed(maps: Sequence[Sequence[Sequence[float]]], mass: float) -> float:
    """ZigZagKV's LMBA of a layer."""
    counts = []
    for rows in maps:
        received = sorted((sum(column) for column in zip(*rows, strict=True)), reverse=True)
        count, held = 0, 0.0
        while held < mass * sum(received):
            held += received[count]
            count += 1
        counts.append(count)
    return mean(counts)


def slow_nearby(maps: Sequence[Sequence[Sequence[float]]], first: int, recent: int) -> float:
    """Mean attention to the first and last tokens."""
    length = len(maps[0][0])
    near = [j for j in range(length) if j < first or j >= length - recent]
    return mean(sum(row[j] for j in near) for rows in maps for row in rows)
