"""The compiled loops of k-means."""

from typing import Any

import numpy as np

from kvfw.core.ops.compiled import Indices, Reals, machine_code

TOKENS = 256
"""Tokens processed together, so that their running results stay in the L1 cache."""


@machine_code
def two_largest(score: Reals, best: Reals, at: Indices, second: Reals) -> None:
    """See :func:`kvfw.core.ops.kmeans.picking.two_largest`; writes the last three arguments."""
    blocks, centres, tokens = score.shape
    top = np.empty(TOKENS, score.dtype)
    other = np.empty(TOKENS, score.dtype)
    # As wide as a float32 score, so that both vectorise alike.
    where = np.empty(TOKENS, np.int32)
    for block in range(blocks):
        for start in range(0, tokens, TOKENS):
            stop = min(start + TOKENS, tokens)
            top[:] = -np.inf
            other[:] = -np.inf
            where[:] = 0
            # Four centres at a time, so that the running results are read and written once for all four.
            whole = centres - centres % 4
            for centre in range(0, whole, 4):
                row0 = score[block, centre, start:stop]
                row1 = score[block, centre + 1, start:stop]
                row2 = score[block, centre + 2, start:stop]
                row3 = score[block, centre + 3, start:stop]
                this = np.int32(centre)
                for j in range(len(row0)):
                    # The larger and the smaller of each pair; the earlier wins a tie.
                    won = row1[j] > row0[j]
                    high01, low01 = (row1[j], row0[j]) if won else (row0[j], row1[j])
                    which01 = this + np.int32(1) if won else this
                    won = row3[j] > row2[j]
                    high23, low23 = (row3[j], row2[j]) if won else (row2[j], row3[j])
                    which23 = this + np.int32(3) if won else this + np.int32(2)
                    # The two largest of the four.
                    won = high23 > high01
                    high, beaten = (high23, high01) if won else (high01, high23)
                    which = which23 if won else which01
                    low = low01 if low01 > low23 else low23
                    low = beaten if beaten > low else low
                    # And of all so far.
                    highest = top[j]
                    won = high > highest
                    beaten = highest if won else high
                    low = beaten if beaten > low else low
                    other[j] = low if low > other[j] else other[j]
                    where[j] = which if won else where[j]
                    top[j] = high if won else highest
            for centre in range(whole, centres):
                row = score[block, centre, start:stop]
                this = np.int32(centre)
                for j in range(len(row)):
                    value = row[j]
                    highest = top[j]
                    won = value > highest
                    beaten = highest if won else value
                    other[j] = beaten if beaten > other[j] else other[j]
                    where[j] = this if won else where[j]
                    top[j] = value if won else highest
            for j in range(stop - start):
                best[block, start + j] = top[j]
                at[block, start + j] = where[j]
                second[block, start + j] = other[j]


@machine_code
def _squared_distance(x: Reals, c: Reals) -> Any:
    """Sum of squared differences in four independent partial sums, which the processor can add in parallel."""
    whole = len(x) // 4 * 4
    q = r = s = t = x[0] - x[0]
    for i in range(0, whole, 4):
        q += (x[i] - c[i]) * (x[i] - c[i])
        r += (x[i + 1] - c[i + 1]) * (x[i + 1] - c[i + 1])
        s += (x[i + 2] - c[i + 2]) * (x[i + 2] - c[i + 2])
        t += (x[i + 3] - c[i + 3]) * (x[i + 3] - c[i + 3])
    for i in range(whole, len(x)):
        q += (x[i] - c[i]) * (x[i] - c[i])
    return (q + r) + (s + t)


@machine_code
def lay_centres(centres: Reals, origin: Reals, of_cluster: Indices, row: Indices, table: Reals, longest: Reals) -> None:
    """See :class:`kvfw.core.ops.kmeans.nearest.Search`; writes ``table``, and the greatest norm to ``longest``."""
    longest[0] = 0
    for cluster in range(len(centres)):
        centre = centres[cluster]
        seen_from = origin[of_cluster[cluster]]
        into = table[row[cluster]]
        for d in range(len(centre)):
            z = centre[d] - seen_from[d]
            into[d] = z + z
        square = _squared_distance(centre, seen_from)
        into[len(centre)] = -square
        longest[0] = max(longest[0], square)
    longest[0] = np.sqrt(longest[0])


@machine_code
def distance_to_own(x: Reals, centres: Reals, assignment: Indices, far: Reals) -> None:
    """See :func:`kvfw.core.ops.kmeans.picking.to_own`; writes ``far``."""
    for token in range(len(x)):
        far[token] = _squared_distance(x[token], centres[assignment[token]])


@machine_code
def decide(
    score: Reals,
    margin: Reals,
    x: Reals,
    start: Indices,
    centres: Reals,
    first: Indices,
    best: Reals,
    at: Indices,
    second: Reals,
) -> None:
    """See :func:`kvfw.core.ops.kmeans.picking.pick`; updates the last three, as :func:`two_largest` left them.

    A function of its own, because in one with :func:`two_largest` the compiler would not vectorise over tokens.
    """
    for block in range(len(score)):
        for token in range(score.shape[2]):
            bound = best[block, token] - margin[block, token]
            if not second[block, token] >= bound:
                continue
            own = x[start[block] + token]
            found = at[block, token]
            least = np.inf
            for centre in range(score.shape[1]):
                if score[block, centre, token] >= bound:
                    other = centres[first[block] + centre]
                    far = _squared_distance(own, other)
                    if far < least:
                        least = far
                        found = centre
            if found != at[block, token]:
                second[block, token] = best[block, token]
                best[block, token] = score[block, found, token]
                at[block, token] = found
