"""Expected Attention (Devoto, Jeblick, Jegou 2025, arXiv 2510.00636)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Float32
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.query_model import turned_ahead
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class ExpectedAttention(Part):
    """Attention that queries to come are expected to give, if they are Gaussian like the prompt's.

    Per query head the queries before RoPE, without the first ``sinks``, have mean m and covariance S. With R the mean
    rotation over the ``positions`` positions that follow, ``m' = R m`` and ``S' = R S R^T``, the expected weight of a
    token is ``exp(z_j)``, ``z_j = s m'.k_j + s^2 k_j^T S' k_j / 2``, s the model's scale. The score is
    ``(a_j + epsilon) ||v_j||_2`` with ``a`` the softmax of z over the tokens after the sinks, mean over a KV head's
    query heads; the sinks get the row's largest score. ``covariance=false`` leaves S' out, ``value_norm=false`` the
    norm with its epsilon.

    Paper: Devoto, Jeblick, Jegou 2025, Expected Attention: KV Cache Compression by Estimating Attention from Future
    Queries Distribution, arXiv 2510.00636. Its tables use ``epsilon=0.02`` in part, and ``@adakv``.

    Deviations: models that normalise queries work too, because queries are observed, not derived from hidden states. A
    model's own attention sinks take their part in the softmax; a cap on its logits is ignored.
    """

    comparable: ClassVar[bool] = True

    epsilon: float = Field(0.0, ge=0, description="added to the attention before the value norm")
    positions: int = Field(512, ge=1, description="number of positions to come that rotations are averaged over")
    sinks: int = Field(4, ge=0, description="first tokens that are left out of moments and softmax")
    covariance: bool = Field(True, description="use the queries' covariance, not only their mean")
    value_norm: bool = Field(True, description="weigh by the values' L2 norm")

    @property
    def needs(self) -> Needs:
        """Moments of the queries before RoPE."""
        return Needs(moments=frozenset({self.sinks}))

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Expected attention, weighed by the values' norms."""
        state = obs.state
        first = state.valid & (state.valid.to(torch.int64).cumsum(-1) <= self.sinks)
        counted = state.valid & ~first
        keys = state.keys.float().masked_fill(~state.valid[..., None], 0.0)
        bias = state.bias.masked_fill(~counted, -torch.inf)
        scores = torch.zeros_like(bias)
        rows, heads = keys.shape[:2]
        by_group = [part.reshape(rows, heads, -1, *part.shape[2:]).unbind(2) for part in self._queries(obs)]
        for mean, spread, sink in zip(*by_group, strict=True):
            # s m'.k + s^2 k S' k / 2 = (s m' + s^2 S' k / 2).k
            along = obs.scale * mean[:, :, None] + obs.scale**2 / 2 * (keys @ spread)
            z = (along * keys).sum(-1) + bias
            total = torch.logaddexp(z.logsumexp(-1, keepdim=True), sink[..., None])
            scores = scores + (z - total).exp().masked_fill(~counted, 0.0)
        scores = scores / len(by_group[0])
        if self.value_norm:
            scores = (scores + self.epsilon) * torch.linalg.vector_norm(state.values.float(), dim=-1)
        scores = scores.masked_fill(~counted, 0.0)
        return torch.where(first, scores.amax((1, 2), keepdim=True), scores)

    def _queries(
        self, obs: Observation
    ) -> tuple[Float32[Tensor, "B H D"], Float32[Tensor, "B H D D"], Float32[Tensor, "B H"]]:
        """Mean and covariance of the queries to come, and the model's own sinks, minus infinity where it has none."""
        moments = obs.query_moments(self.sinks)
        mean, spread = moments.mean, moments.covariance if self.covariance else torch.zeros_like(moments.scatter)
        sinks = mean.new_full(mean.shape[:2], -torch.inf)
        if obs.sink_logits is not None:
            sinks = obs.sink_logits.float().expand_as(sinks)
        mean = turned_ahead(mean[:, :, None], obs, self.positions).squeeze(2)
        spread = turned_ahead(turned_ahead(spread, obs, self.positions).mT, obs, self.positions)
        return mean, spread, sinks
