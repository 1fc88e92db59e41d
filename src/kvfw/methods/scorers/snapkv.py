"""SnapKV (Li et al. 2024, arXiv 2404.14469)."""

from typing import ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor

from kvfw.core.ops.attention import odd_kernel, pool_middle, window_attention, window_peaks
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs, Observation


class SnapKV(Part):
    """Attention from the last ``window`` queries, averaged, then pooled along the sequence.

    ``c_j = mean over heads of the group, mean over the last w queries i, of softmax(s Q[-w:] K^T)_ij``, with the
    causal mask inside the window; the score is the 1-D pooling of ``c`` over the middle of the prompt. With
    ``reduce=max`` both means are maxima.

    Paper: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv 2404.14469.

    Deviations: the paper's code repeats the KV heads and keeps tokens per query head, which costs ``g`` times the
    memory; here the group is averaged and tokens are kept per KV head. Protected tokens are dropped before pooling.
    ``reduce=max`` over the queries is kvfw's own (AdaKV's code has a maximum over the group): a mean says how many of
    the window's queries look at a token, a maximum how much one of them depends on it.
    The window defaults to 84 tokens (the founding experiment); the original code uses 32 and 64, avg pooling with
    kernel 5 and max pooling with kernel 7.
    """

    comparable: ClassVar[bool] = True

    window: int = Field(84, ge=1, description="number of last queries; clipped to the prompt's length")
    kernel: int = Field(7, ge=1, description="pooling width in tokens, odd")
    pool: Literal["avg", "max"] = Field("avg", description="pooling along the sequence")
    reduce: Literal["mean", "max"] = Field("mean", description="over the window's queries and the group's heads")

    _odd = field_validator("kernel")(odd_kernel)

    @property
    def needs(self) -> Needs:
        """The last ``window`` queries."""
        return Needs(queries=self.window)

    def score(self, obs: Observation) -> Float[Tensor, "B Hkv N"]:
        """Pooled window attention of every slot of the middle, 0 elsewhere."""
        attention = window_attention(obs) if self.reduce == "mean" else window_peaks(obs)
        return pool_middle(attention, obs, self.kernel, self.pool)
