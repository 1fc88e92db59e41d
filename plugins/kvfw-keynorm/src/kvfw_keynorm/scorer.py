"""Key norm (Devoto et al. 2024, arXiv 2406.11430)."""

import torch
from jaxtyping import Float
from torch import Tensor

from kvfw import Needs, Observation, Part


class KeyNorm(Part):
    """``score_j = -||k_j||``: keys of small norm tend to receive much attention."""

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Minus the norm of every key."""
        norms: Tensor = torch.linalg.vector_norm(obs.state.keys.float(), dim=-1)
        return -norms
