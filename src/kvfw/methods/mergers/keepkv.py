"""KeepKV (Tian et al. 2025, arXiv 2504.09936)."""

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.folding import folded, heaviest, nearest_kept
from kvfw.core.parts.part import Part
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState


class KeepKV(Part):
    """Folds dropped tokens into similar kept ones so that attention's output now stays what it was.

    Kept are the tokens of most weight, and weights are attention: ``a_i ~ p_i s_i`` with votes p (the masses) and
    ``s = exp(logit)``. A dropped token joins the kept token of most similar key if their cosine is at least
    ``threshold``, else it is dropped. Key and value become ``sum a x / sum a``, votes add up, and the bias makes
    the new slot's part of attention that of its tokens: ``ln sum a_i - (sum a_i ln s_i) / sum a_i``.

    Paper: Tian et al. 2025, KeepKV: Achieving Periodic Lossless KV Cache Compression for Efficient LLM Inference,
    arXiv 2504.09936.

    Deviations: the paper scales the merged key by a factor that grows without bound where logits are near 0; here the
    bias carries it, which needs no query. Where weights are pooled or averaged over queries, the output is kept on
    average only. The threshold is taken from a restatement of the paper.
    """

    rows_apart: ClassVar[bool] = True
    loses_mass: ClassVar[bool] = True
    biases: ClassVar[bool] = True

    threshold: float = Field(0.8, ge=-1, le=1, description="least cosine of keys that merge")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        near = nearest_kept(state, kept)
        joins = (near.cosine >= self.threshold) & state.valid & ~kept
        top = weights.float().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        share = (weights.float() / top).clamp(min=1e-12) * state.valid
        merged = folded(state, kept, near.target, joins, share, share)

        def sums(x: Tensor) -> Tensor:
            return torch.zeros_like(x).scatter_add(2, near.target, x * (joins | kept))

        whole = sums(share)
        logit = (share / state.mass.clamp(min=1e-30)).clamp(min=1e-30).log()
        bias = whole.clamp(min=1e-30).log() - sums(share * logit) / whole.clamp(min=1e-30)
        alone = sums(joins.float()) == 0
        bias = torch.where(alone | ~kept, state.bias, state.bias + bias - state.mass.clamp(min=1e-30).log())
        return replace(merged, bias=take(replace(state, bias=bias), kept).bias)
