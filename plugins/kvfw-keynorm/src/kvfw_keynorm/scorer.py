"""Key norm (Devoto et al. 2024, arXiv 2406.11430)."""

import torch
from jaxtyping import Float
from torch import Tensor

from kvfw import Needs, Observation, Part


class KeyNorm(Part):
    """``score_j = 1 / ||k_j||``: keys of small norm tend to receive much attention.

    Ranks as the paper's ``-||k_j||`` does; being positive, it can also weight a merge, whose weights must be >= 0.
    """

    @property
    def needs(self) -> Needs:
        """Nothing but the keys."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """One over the norm of every key; a key of no length counts as one of 1e-6."""
        norms: Tensor = torch.linalg.vector_norm(obs.state.keys.float(), dim=-1)
        return 1 / norms.clamp(min=1e-6)
