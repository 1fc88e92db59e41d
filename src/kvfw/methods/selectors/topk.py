"""Top-k selection."""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.topk import highest
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Observation


class TopK(Part):
    """Keeps the ``budget`` eligible tokens of highest score in every head; ties go to the lowest position.

    ``kept = {j : #{i eligible : s_i > s_j, or s_i = s_j and i < j} < K}``, row by row and KV head by KV head.

    Source: the rule of SnapKV, H2O and most eviction methods. The tie rule is kvfw's own: pooling with ``max`` makes
    ties common, and without a rule the result depends on the sorting algorithm.
    """

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots."""
        return highest(scores, budget, eligible)
