"""The compiled loops of cluster sums and weighted means."""

import math

import numpy as np

from kvfw.core.ops.compiled import Indices, Reals, machine_code


@machine_code
def add_by_cluster(values: Reals, assignment: Indices, sums: Reals) -> None:
    """Adds every row of values ``[N, E]`` to its cluster's row of sums ``[K, E]``, in token order."""
    for token in range(len(values)):
        row = values[token]
        into = sums[assignment[token]]
        for e in range(len(row)):
            into[e] += row[e]


@machine_code
def means_by_cluster(values: Reals, weights: Reals, assignment: Indices, means: Reals, limit: float) -> None:
    """See :func:`kvfw.core.ops.cluster_means.weighted_means`; writes ``means``, which must start as zeros."""
    clusters = len(means)
    count = np.zeros(clusters, np.int64)
    last = np.zeros(clusters, np.int64)
    top = np.zeros(clusters, weights.dtype)
    for token in range(len(values)):
        cluster = assignment[token]
        count[cluster] += 1
        last[cluster] = token
        top[cluster] = max(top[cluster], weights[token])
    # A weight becomes scale * weight + plain.
    scale = np.zeros(clusters, weights.dtype)
    plain = np.zeros(clusters, weights.dtype)
    for cluster in range(clusters):
        if top[cluster] > 0:
            mantissa, _ = math.frexp(top[cluster])
            scale[cluster] = min(mantissa / top[cluster], limit)
        else:
            plain[cluster] = 1
    total = np.zeros(clusters, weights.dtype)
    for token in range(len(values)):
        cluster = assignment[token]
        weight = scale[cluster] * weights[token] + plain[cluster]
        total[cluster] += weight
        row = values[token]
        into = means[cluster]
        for e in range(len(row)):
            into[e] += weight * row[e]
    for cluster in range(clusters):
        if count[cluster] == 1:
            means[cluster] = values[last[cluster]]
        else:
            means[cluster] /= total[cluster]
