"""DropKV (2026, openreview MqfNzH3TVH)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Float32
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import odd_kernel, pool_middle
from kvfw.core.ops.rows import window_rows
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation

#: The least that ``1 - p`` counts: a token with all the attention would change the output without bound.
LEAST = 1e-6


class DropKV(Part):
    """How much the last queries' outputs change when one token alone is dropped, exactly.

    Without token j the output ``o_i`` of query i changes by ``p_ij / (1 - p_ij) (o_i - v_j)``. So
    ``s_j = sum over the last w queries i of (p_ij / (1 - p_ij))^2 ||v_j - o_i||^2``, mean over the query heads of a KV
    head, pooled (average) along the sequence.

    Source: DropKV, eviction by decoupled residual-output perturbation, openreview MqfNzH3TVH, as its authors describe
    it in kvpress's pull request 285; their window, kernel and reduction over the group are the defaults here.

    Deviations: ``1 - p`` is at least 1e-6 (theirs adds 1e-6). Protected tokens are left out of pooling.
    """

    comparable: ClassVar[bool] = True

    window: int = Field(32, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")

    _odd = field_validator("kernel")(odd_kernel)

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Pooled squared changes of every slot of the middle, 0 elsewhere."""
        values = obs.state.values.float().masked_fill(~obs.state.valid[..., None], 0.0)
        heads = [self._by_row(p, values[:, None, h]) for h, p in enumerate(window_rows(obs))]
        return pool_middle(torch.stack(heads, dim=1), obs, self.kernel, "avg")

    def _by_row(self, p: Float32[Tensor, "B g w N"], v: Float32[Tensor, "B 1 N Dv"]) -> Float32[Tensor, "B N"]:
        # Each row by itself, in memory of its own: how products round depends on where in a batch a row lies.
        pairs = zip(torch.split(p, 1), torch.split(v, 1), strict=True)
        return torch.cat([self._changes(one.clone(), own.clone()) for one, own in pairs])

    def _changes(self, p: Float32[Tensor, "B g w N"], v: Float32[Tensor, "B 1 N Dv"]) -> Float32[Tensor, "B N"]:
        # A row's largest attention is dealt with by itself: near 1 the expanded square below would be all rounding.
        top, at = p.max(-1, keepdim=True)
        rest = p.scatter(-1, at, 0.0)
        mine = v.expand(-1, p.shape[1], -1, -1).gather(2, at.expand(-1, -1, -1, v.shape[-1]))
        without = top * (rest @ v / (1 - top).clamp(min=LEAST) - mine)
        change = torch.zeros_like(p).scatter(-1, at, without.square().sum(-1, keepdim=True)).sum(2)
        # ||v - o||^2 = ||v||^2 - 2 v o + ||o||^2, each term summed over the queries by itself: nothing is w x N x Dv.
        o, r = p @ v, (rest / (1 - rest)).square().mT
        change = change + r.sum(-1) * v.square().sum(-1) - 2 * ((r @ o) * v).sum(-1)
        change = change + (r @ o.square().sum(-1, keepdim=True)).squeeze(-1)
        return change.clamp(min=0).mean(1)  # rounding can take it below 0 where v is almost o
