"""ChunkKV's selection (Liu et al. 2025, arXiv 2502.00299), and its form gated by entropy."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.partitions import Partitions, partitions
from kvfw.core.ops.row_order import in_order, over_heads
from kvfw.core.ops.topk import rank
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Observation


class ChunksSelector(Part):
    """Keeps whole chunks of neighbouring tokens, the same in all heads of a layer.

    The middle is cut into chunks of ``size``. With S_j the mean of token j's scores over the heads, a chunk's score is
    the mean of S over its tokens. Chunks are taken from the highest score down, ties to the earlier one; the last
    gives its tokens of highest S until every head has exactly its budget.

    With ``gate=entropy`` a chunk counts as spiky if its score is at least the median of all chunks and its entropy
    ``-sum p log p / log n``, ``p = S / sum S`` over its n tokens, is below the median. A spiky chunk gives only its
    ``spiky`` tokens of highest S; when all chunks have been taken, single tokens of highest S follow.

    Paper: Liu et al. 2025, ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference,
    arXiv 2502.00299. The gate: EntropyGatedChunkKVPress of NVIDIA's kvpress (2026), which has no paper.

    Deviations: budgets are exact, where a whole number of chunks misses them. Heads with unequal budgets take longer or
    shorter parts of one order. The paper's reuse of one layer's chunks in the next layer, which saves time, is left
    out: every layer chooses its own. Chunks are counted from the first token of the middle.
    """

    size: int = Field(10, ge=1, description="tokens per chunk")
    gate: Literal["none", "entropy"] = Field("none", description="take only the best tokens of spiky chunks")
    spiky: int = Field(4, ge=1, description="tokens taken from a spiky chunk")

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots."""
        means, members = over_heads(scores, eligible), eligible.any(1, keepdim=True)
        chunks, width = partitions(members, self.size), members.shape[-1]
        tokens = chunks.cut(means)
        count = chunks.filled.sum(-1)
        score = (tokens.sum(-1) / count.clamp(min=1)).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        by_token = chunks.cut(rank(means, members).double())
        by_chunk = rank(score, count > 0)[..., None] * width
        order = by_chunk + by_token
        if self.gate == "entropy":
            inside = by_token.masked_fill(~chunks.filled, torch.inf).argsort(-1).argsort(-1)
            late = _spiky(chunks, tokens, score)[..., None] & (inside >= self.spiky)
            order = torch.where(late, width * width + by_token, order)
        return in_order(chunks.joined(order, width), budget, eligible)


def _spiky(
    chunks: Partitions, tokens: Float64[Tensor, "B 1 C size"], score: Float64[Tensor, "B 1 C"]
) -> Bool[Tensor, "B 1 C"]:
    """Chunks of at least the median score and less than the median entropy."""
    count = chunks.filled.sum(-1)
    raised = (tokens - tokens.amin(-1, keepdim=True).clamp(max=0.0)).masked_fill(~chunks.filled, 0.0)
    p = raised / raised.sum(-1, keepdim=True).clamp(min=1e-300)
    entropy = torch.special.entr(p).sum(-1) / count.clamp(min=2).double().log()
    # Equal shares have entropy 1 but for rounding, which must not decide.
    entropy = (entropy.nan_to_num(nan=0.0) * 1e9).round() / 1e9
    medians = [each.masked_fill(count == 0, math.nan).nanmedian(-1, keepdim=True).values for each in (score, entropy)]
    spiky: Tensor = (score >= medians[0]) & (entropy < medians[1])
    return spiky
