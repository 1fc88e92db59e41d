"""Top-k selection."""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kvfw.core.ops.topk import rank
from kvfw.core.options import Part


class TopK(Part):
    """Keeps the ``budget`` eligible tokens of highest score in every head; ties go to the lowest position."""

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the chosen slots."""
        return (rank(scores, eligible) < budget[..., None]) & eligible
