"""KVMerger (Wang et al. 2024, arXiv 2407.08454)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kvfw.core.ops.clusters import HeadTokens, merge_clusters
from kvfw.core.parts.part import Part
from kvfw.core.state.state import KVState


class KVMerger(Part):
    """Merges runs of neighbouring tokens with similar keys, weighted by a Gaussian around the most attended one.

    Of a head's M tokens the M - K pairs of neighbours with the highest cosine of keys are joined, which leaves K
    runs. With the run's token p of most weight, ``g_i = exp(-||k_p - k_i||^2 / (2 sigma^2))`` and sigma the mean
    distance of the run's other tokens from it, key, value and position become ``sum g x / sum g``.

    Paper: Wang, Jin, Yu, Zhang 2024, Model Tells You Where to Merge: Adaptive KV Cache Merging for LLMs on
    Long-Context Tasks, arXiv 2407.08454.

    Deviations: the paper joins neighbours above a cosine of about 0.75, and the ratio follows; here the budget
    decides how alike joined neighbours are. Its sigma is taken from a restatement of the paper.
    """

    rows_apart: ClassVar[bool] = True

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        gaussian = torch.zeros_like(weights, dtype=torch.float32)
        for row, counts in enumerate(budget.tolist()):
            for head, count in enumerate(counts):
                valid = state.valid[row, head]
                if count:
                    keys, own = state.keys[row, head][valid].float(), weights[row, head][valid].float()
                    gaussian[row, head, valid] = _gaussian(keys, own, _runs(keys, count))

        def clusters(tokens: HeadTokens, count: int) -> Int64[Tensor, " n"]:
            return _runs(tokens.keys, count)

        return merge_clusters(state, gaussian, budget, clusters)


def _runs(keys: Float[Tensor, "n D"], count: int) -> Int64[Tensor, " n"]:
    """The run of every token: the least similar neighbours are parted, ties at the later ones."""
    alike = torch.nn.functional.cosine_similarity(keys[1:], keys[:-1], dim=-1)
    parted = torch.zeros(len(keys), dtype=torch.int64, device=keys.device)
    parted[1 + alike.flip(0).argsort(stable=True)[: count - 1].neg().add(len(alike) - 1)] = 1
    return parted.cumsum(0)


def _gaussian(
    keys: Float[Tensor, "n D"], weights: Float[Tensor, " n"], runs: Int64[Tensor, " n"]
) -> Float[Tensor, " n"]:
    count = int(runs[-1]) + 1
    most = weights.new_full((count,), -torch.inf).scatter_reduce(0, runs, weights, "amax")
    place = torch.arange(len(keys), device=keys.device)
    first = torch.where(weights == most[runs], place, len(keys))
    pivot = place.new_full((count,), len(keys)).scatter_reduce(0, runs, first, "amin")
    distance = (keys - keys[pivot][runs]).norm(dim=-1)
    others = (torch.bincount(runs, minlength=count) - 1).clamp(min=1)
    sigma = weights.new_zeros(count).scatter_add(0, runs, distance) / others
    return torch.exp(-((distance / sigma[runs].clamp(min=1e-20)) ** 2) / 2)
