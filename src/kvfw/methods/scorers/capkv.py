"""CapKV (Tang et al. 2026, arXiv 2604.25975)."""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.leverage import leverages
from kvfw.core.ops.query_model import turned_ahead
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class CapKV(Part):
    """Values that span directions of their own, weighed by how well their keys suit the queries to come.

    Per query head, mu is the mean of the prompt's queries before RoPE, without the first ``sinks``, turned by the mean
    rotation over the ``positions`` positions that follow. ``w_j = exp(tau (cos(k_j, mu) - max))`` and ``s_j = w_j v_j^T
    (I + sum_i w_i v_i v_i^T)^-1 v_j``, mean over a KV head's query heads; the sinks get the row's largest score.

    Paper: Tang et al. 2026, Rethinking KV Cache Eviction via a Unified Information-Theoretic Objective, arXiv
    2604.25975. The constants are those of kvpress's implementation (CapPress).

    Deviations: like kvpress, cosines stand for the paper's plain products, and mu is rotated; no epsilon is added to
    the weights. The first ``sinks`` tokens take no part in the sum. Leverage of values of different heads has no common
    unit.
    """

    tau: float = Field(5.0, ge=0, description="how sharply the weights fall with the cosine")
    positions: int = Field(512, ge=1, description="number of positions to come that rotations are averaged over")
    sinks: int = Field(4, ge=0, description="first tokens that are left out")

    @property
    def needs(self) -> Needs:
        """Moments of the queries before RoPE."""
        return Needs(moments=frozenset({self.sinks}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Weighed leverage of values."""
        state = obs.state
        first = state.valid & (state.valid.to(torch.int64).cumsum(-1) <= self.sinks)
        counted = state.valid & ~first
        keys, values = (x.float().masked_fill(~counted[..., None], 0.0) for x in (state.keys, state.values))
        mean = turned_ahead(obs.query_moments(self.sinks).mean[:, :, None], obs, self.positions).squeeze(2)
        scores = torch.zeros_like(state.bias)
        by_group = mean.reshape(mean.shape[0], keys.shape[1], -1, mean.shape[-1]).unbind(2)
        for mu in by_group:
            cosine = torch.cosine_similarity(keys, mu[:, :, None], dim=-1).masked_fill(~counted, -torch.inf)
            weights = (self.tau * (cosine - cosine.amax(-1, keepdim=True))).exp().masked_fill(~counted, 0.0)
            scores = scores + leverages(values, weights, 1.0) / len(by_group)
        return torch.where(first, scores.amax((1, 2), keepdim=True), scores)
