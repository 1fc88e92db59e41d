"""A selector."""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw import Observation, Part, Selector, rank


class Best(Part):
    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        return (rank(scores, eligible) < budget[..., None]) & eligible


best: Selector = Best()
