"""R-KV (Cai et al. 2025, arXiv 2505.24133)."""

import torch
from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import odd_kernel, pool_middle
from kvfw.core.ops.redundancy import redundancy
from kvfw.core.ops.rows import joint_rows
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class RKV(Part):
    """Tokens that the last queries look at and whose keys do not repeat others: ``s_j = mix I_j - (1 - mix) R_j``.

    ``I`` is the mean over the last ``window`` queries of softmax_j of the largest logit of a KV head's query heads,
    max-pooled along the sequence. ``R_j = softmax_j(mean over i of cos(k_i, k_j))``, without i = j and without the
    latest j whose cosine with i exceeds ``threshold``: of tokens that repeat each other the latest is spared.

    Paper: Cai et al. 2025, R-KV: Redundancy-aware KV Cache Compression for Reasoning Models, arXiv 2505.24133; the
    constants are its code's.

    Deviations: the paper compresses every 128 tokens of an answer (``compress_every=128``); the prompt is compressed
    too. Where no cosine exceeds the threshold, nothing is spared (its code: the first token). Tokens after the middle
    take no part in I, nor do protected ones in its pooling. R has no unit in common over heads.
    """

    window: int = Field(8, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    mix: float = Field(0.07, ge=0, le=1, description="weight of attention beside redundancy")
    threshold: float = Field(0.5, ge=-1, le=1, description="cosine above which keys repeat each other")

    _odd = field_validator("kernel")(odd_kernel)

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Attention minus redundancy."""
        real = (obs.window()[1] >= 0).sum(1)[:, None, None]
        important = torch.stack([rows.sum(1) for rows in joint_rows(obs, "max")], 1) / real
        repeated = redundancy(obs.state.keys, obs.state.valid, self.threshold)
        return self.mix * pool_middle(important, obs, self.kernel, "max") - (1 - self.mix) * repeated
