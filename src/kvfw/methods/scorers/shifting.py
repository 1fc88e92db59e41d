"""CAKE's eviction score (Qin et al. 2025, arXiv 2503.12491)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import odd_kernel, pool_middle
from kvfw.core.ops.rows import column_variances, window_rows
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class Shifting(Part):
    """Attention from the last queries that is high, or changes from query to query.

    ``s_j = mean_i A_ij + gamma var_i A_ij`` over the last ``window`` queries i, mean over the query heads of the
    group, then averaged over ``kernel`` neighbours in the middle.

    Paper: Qin et al. 2025, CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences, arXiv 2503.12491:
    its eviction indicator; the recipe ``cake`` adds its budgets.

    Deviations: protected tokens are dropped before pooling, as in ``snapkv``.
    """

    comparable: ClassVar[bool] = True

    window: int = Field(32, ge=2, description="number of last queries; clipped to the prompt's length")
    gamma: float = Field(200, ge=0, description="weight of the variance")
    kernel: int = Field(5, ge=1, description="pooling width in tokens, odd")

    _odd = field_validator("kernel")(odd_kernel)

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Pooled mean and variance of every slot of the middle, 0 elsewhere."""
        _, positions = obs.window()
        real = positions >= 0
        count = real.sum(1).clamp(min=1)[:, None]
        heads = [
            (rows.sum(2) / count[..., None] + self.gamma * column_variances(rows, real)).mean(1)
            for rows in window_rows(obs)
        ]
        return pool_middle(torch.stack(heads, 1).float(), obs, self.kernel, "avg")
