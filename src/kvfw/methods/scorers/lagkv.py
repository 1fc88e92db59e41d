"""LagKV (Liang, Zhang, Li, Li 2025, arXiv 2504.04704)."""

import torch
from jaxtyping import Float, Float32
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.partitions import partitions
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class LagKV(Part):
    """Tokens that stand out beside the tokens that follow them.

    After ``sinks`` tokens come partitions of ``lag``. Those of partition p are normalised channel by channel with the
    least and the largest of partition p + 1, ``x' = (x - min) / (max - min)``, and ``c_j = softmax_j(std of x'_j over
    the channels)`` within the partition, for keys and values. The score is the rank of ``c_j(K) + value_weight
    c_j(V)`` within its partition, from 0 to 1; with ``cross=true`` it is that sum, compared over partitions. Tokens
    that no whole partition follows come before all these, the latest first, and the sinks before them.

    Paper: Liang et al. 2025, LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important, arXiv
    2504.04704. Its code takes 16 sinks and partitions of 1024 by default and shows 128; kvpress takes 4 and 128.

    Deviations: the paper keeps a share of every partition and its last one in addition; here both come out of one
    budget, so a budget below the last partition keeps recent tokens alone, and ``lag`` should be well below it.
    Channels that are constant over a reference count 0. Ranks have no common unit.
    """

    lag: int = Field(128, ge=2, description="tokens in a partition")
    sinks: int = Field(4, ge=0, description="first tokens, which are in no partition")
    value_weight: float = Field(1.0, ge=0, description="weight of the values' score beside the keys'")
    cross: bool = Field(False, description="compare scores over partitions, not ranks within them")

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Ranks within partitions; above 1 for the tail."""
        state = obs.state
        rank = state.valid.to(torch.int64).cumsum(-1)
        runs = partitions(state.valid & (rank > self.sinks), self.lag)
        key, value = (_spreads(runs.cut(x)) for x in (state.keys, state.values))
        both = key + self.value_weight * value
        if not self.cross:
            both = both.argsort(dim=-1, stable=True).argsort(dim=-1).float() / self.lag
        whole = torch.nn.functional.pad(runs.filled.all(-1), (0, 1))
        followed = whole[..., 1:, None].expand_as(both)
        most = 1 + self.value_weight  # c_j is at most 1
        tail = most * (1 + runs.cut(rank.float()) / state.width)
        scores = runs.joined(torch.where(followed, both, tail), state.width)
        return scores.masked_fill(rank <= self.sinks, 3 * most)


def _spreads(x: Float32[Tensor, "B Hkv P lag D"]) -> Float32[Tensor, "B Hkv P lag"]:
    """Softmax of the spread over channels, relative to the next partition; the last one's means nothing."""
    following = x.roll(-1, 2)
    least, largest = following.amin(3, keepdim=True), following.amax(3, keepdim=True)
    within = (x - least) / (largest - least)
    return torch.where(largest > least, within, 0.0).std(-1).softmax(-1)
