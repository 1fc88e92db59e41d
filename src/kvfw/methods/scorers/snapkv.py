"""SnapKV (Li et al. 2024, arXiv 2404.14469)."""

from typing import ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import pool_middle, window_attention
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class SnapKV(Part):
    """Attention from the last ``window`` queries, averaged, then pooled along the sequence.

    ``c_j = mean over heads of the group, mean over the last w queries i, of softmax(s Q[-w:] K^T)_ij``, with the
    causal mask inside the window; the score is the 1-D pooling of ``c`` over the middle of the prompt.

    Paper: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469.

    Deviations: the paper's code repeats the KV heads and keeps tokens per query head, which costs ``g`` times the
    memory; here the group is averaged and tokens are kept per KV head. Protected tokens are dropped before pooling.
    The window defaults to 84 tokens (the founding experiment); the original code uses 32 and 64, avg pooling with
    kernel 5 and max pooling with kernel 7.
    """

    comparable: ClassVar[bool] = True

    window: int = Field(84, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    pool: Literal["avg", "max"] = Field("avg", description="pooling along the sequence")

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError(f"the pooling kernel must be odd; use {kernel - 1} or {kernel + 1}")
        return kernel

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Pooled window attention of every slot of the middle, 0 elsewhere."""
        return pool_middle(window_attention(obs), obs, self.kernel, self.pool)
