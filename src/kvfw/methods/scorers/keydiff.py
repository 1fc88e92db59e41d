"""KeyDiff (Park et al. 2025, arXiv 2504.15364)."""

import torch
from jaxtyping import Float
from torch import Tensor

from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class KeyDiff(Part):
    """``s_j = -cos(k_j, a)``, ``a`` the mean of ``k_j / ||k_j||`` over a head's slots: keys unlike the others stay.

    Paper: Park et al. 2025, KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments, arXiv 2504.15364.

    Deviations: the paper evicts block by block while it reads the prompt; here the whole prompt is scored once. Cosines
    of different heads have no common unit, so the scores are not comparable.
    """

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Negative cosines to the mean direction."""
        valid = obs.state.valid[..., None]
        directions = torch.nn.functional.normalize(obs.state.keys.float().masked_fill(~valid, 0.0), dim=-1)
        anchor = directions.sum(2, keepdim=True) / valid.sum(2, keepdim=True).clamp(min=1)
        return -torch.cosine_similarity(directions, anchor, dim=-1)
