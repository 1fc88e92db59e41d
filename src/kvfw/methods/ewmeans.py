"""Attention-weighted E-Means: weighted k-means of keys, one clustering per row and KV head."""

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.kmeans import blocked_kmeans, cluster_sums, weighted_kmeans, weighted_means
from kvfw.core.options import Part
from kvfw.core.state import KVState

#: Floor on the weights, as a share of their mean, so that no token is without a say.
WEIGHT_FLOOR = 1e-3


class EWMeans(Part):
    """Clusters keys by weighted Lloyd iterations and replaces each cluster by its weighted means.

    With weights ``a_i`` (a scorer's scores plus 1e-3 of their mean) a cluster's key, value and position are
    ``sum(a x) / sum(a)``, and its mass is the sum of its members' masses. Initial centres are evenly spaced tokens; an
    empty cluster takes the token of largest weighted distance. A cluster of one token is that token bit for bit.

    Source: the founding experiment names this method; no public code or paper defines it beyond that description, so
    this is a reconstruction.
    """

    iters: int = Field(8, ge=1, le=1000, description="at most this many assignments; stops when they are stable")
    block: int | None = Field(None, ge=1, description="cluster within contiguous blocks of this many tokens")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.interfaces.Merger`. Heads are clustered one by one, so none affects another."""
        rows, heads = budget.shape
        width = int(budget.max())
        merged = _blank(state, rows, heads, width)
        for row in range(rows):
            for head in range(heads):
                slots = int(budget[row, head])
                if slots:
                    self._merge_head(state, weights, row, head, slots, merged)
        return merged

    def _merge_head(
        self, state: KVState, weights: Float[Tensor, "B Hkv N"], row: int, head: int, slots: int, out: KVState
    ) -> None:
        """Clusters one head and writes its slots, ordered by position, to the right end of ``out``."""
        real = state.valid[row, head]
        keys, values = state.keys[row, head][real], state.values[row, head][real]
        positions, mass = state.positions[row, head][real], state.mass[row, head][real]
        attention = weights[row, head][real].to(keys.dtype)
        a = attention + WEIGHT_FLOOR * attention.mean()
        if self.block is None:
            clusters = weighted_kmeans(keys, a, slots, self.iters)
        else:
            clusters = blocked_kmeans(keys, a, slots, self.iters, self.block)
        assignment = clusters.assignment
        # Positions are averaged as offsets from the cluster's first token: equal positions then give back themselves,
        # and float32 is exact enough at any length.
        first = torch.full((slots,), torch.inf, device=keys.device).scatter_reduce(0, assignment, positions, "amin")
        offsets = weighted_means((positions - first[assignment])[:, None], a, assignment, slots)[:, 0]
        mean_positions = first + offsets
        order = mean_positions.argsort(stable=True)
        out.keys[row, head, -slots:] = clusters.centres[order]
        out.values[row, head, -slots:] = weighted_means(values, a, assignment, slots)[order]
        out.positions[row, head, -slots:] = mean_positions[order]
        out.mass[row, head, -slots:] = cluster_sums(mass[:, None], assignment, slots)[order, 0]
        out.bias[row, head, -slots:] = 0.0


def _blank(state: KVState, rows: int, heads: int, width: int) -> KVState:
    """A state of empty slots, to be filled."""
    like = state.keys
    return KVState(
        keys=like.new_zeros(rows, heads, width, like.shape[-1]),
        values=state.values.new_zeros(rows, heads, width, state.values.shape[-1]),
        positions=state.positions.new_full((rows, heads, width), -1.0),
        mass=state.mass.new_zeros(rows, heads, width),
        bias=state.bias.new_full((rows, heads, width), -torch.inf),
    )
