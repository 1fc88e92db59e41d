"""From a rule which tokens go together to merged slots: what mergers have in common."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from kvfw.core.ops.kmeans import cluster_sums, weighted_means
from kvfw.core.state import KVState


@dataclass(frozen=True)
class HeadTokens:
    """The slots one KV head of one row has to merge, in order of position; no empty ones.

    Args:
        keys, values: float32, the keys as the space of the merge has them.
        positions, mass: as in :class:`kvfw.KVState`.
        weights: how much each counts; not negative.
    """

    keys: Float[Tensor, "n Dk"]
    values: Float[Tensor, "n Dv"]
    positions: Float32[Tensor, " n"]
    mass: Float32[Tensor, " n"]
    weights: Float[Tensor, " n"]


#: Says for each of a head's tokens which of ``count`` clusters it belongs to, 0 to ``count - 1``; none may be empty.
ClustersOf = Callable[[HeadTokens, int], Int64[Tensor, " n"]]


def merge_clusters(
    state: KVState,
    weights: Float[Tensor, "B Hkv N"],
    budget: Int64[Tensor, "B Hkv"],
    clusters_of: ClustersOf,
    *,
    floor: float = 0.0,
) -> KVState:
    """Every cluster's weighted mean as one slot, laid out as a merger has to return it (:class:`kvfw.Merger`).

    Keys, values and positions are ``sum(a x) / sum(a)``, or the plain mean where all weights ``a`` are 0; masses add
    up; biases are 0. A cluster of one token is that token bit for bit. Heads are worked on one by one, so that none
    affects another; ``clusters_of`` is not called for a head with a budget of 0.

    Args:
        state, weights, budget: as a merger gets them.
        clusters_of: the rule, for one head at a time.
        floor: every weight is raised by this share of its head's mean, so that no token is without a say.
    """
    rows, heads, width = *budget.shape, int(budget.max())
    # Slots are filled in from the right; what is left is an empty slot.
    keys = state.keys.new_zeros(rows, heads, width, state.keys.shape[-1])
    values = state.values.new_zeros(rows, heads, width, state.values.shape[-1])
    positions = state.positions.new_full((rows, heads, width), -1.0)
    mass = state.mass.new_zeros(rows, heads, width)
    bias = state.bias.new_full((rows, heads, width), -torch.inf)
    for row, head in ((row, head) for row in range(rows) for head in range(heads) if budget[row, head] > 0):
        count, tokens = int(budget[row, head]), _tokens(state, weights, row, head, floor)
        which, a, at = clusters_of(tokens, count), tokens.weights, tokens.positions
        # Positions are averaged as offsets from the cluster's first token: float32 is exact enough at any length then.
        first = at.new_full((count,), torch.inf).scatter_reduce(0, which, at, "amin")
        means = first + weighted_means((at - first[which])[:, None], a, which, count)[:, 0]
        order = means.argsort(stable=True)
        keys[row, head, -count:] = weighted_means(tokens.keys, a, which, count)[order]
        values[row, head, -count:] = weighted_means(tokens.values, a, which, count)[order]
        positions[row, head, -count:] = means[order]
        mass[row, head, -count:] = cluster_sums(tokens.mass[:, None], which, count)[order, 0]
        bias[row, head, -count:] = 0.0
    return KVState(keys, values, positions, mass, bias)


def _tokens(state: KVState, weights: Float[Tensor, "B Hkv N"], row: int, head: int, floor: float) -> HeadTokens:
    real = state.valid[row, head]
    keys, values, positions, mass, a = (
        part[row, head][real] for part in (state.keys, state.values, state.positions, state.mass, weights)
    )
    return HeadTokens(keys, values, positions, mass, a.to(keys.dtype) + floor * a.to(keys.dtype).mean())
