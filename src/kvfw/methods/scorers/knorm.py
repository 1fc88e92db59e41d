"""KNorm (Devoto et al. 2024, arXiv 2406.11430)."""

import torch
from jaxtyping import Float
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class KNorm(Part):
    """``s_j = -||k_j||_2``: tokens of short keys tend to receive much attention.

    Paper: Devoto et al. 2024, A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv 2406.11430.

    Deviations: the paper leaves its first two layers uncompressed, because there the correlation does not hold; write
    ``[0-1]full;[2-]knorm`` for that. Norms of different heads have no common unit, so the scores are not comparable.
    They are taken in float32: in bfloat16 most of a head's norms would tie.
    """

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Negative norms of the keys."""
        norms: Tensor = torch.linalg.vector_norm(obs.state.keys.float(), dim=-1)
        return -norms
