"""KIVI: asymmetric quantisation, keys by channel and values by token (Liu et al. 2024, arXiv 2402.02750)."""

import math
from collections.abc import Mapping

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kvfw.core.contracts.codec import CodedHeads, PlainHeads
from kvfw.core.ops.minmax import MinMaxCodes, dequantised, quantised
from kvfw.core.parts.part import Part
from kvfw.core.state.observation import Needs


class Kivi(Part):
    """Keys in ``bits`` bits per channel, in groups of tokens; values in ``bits`` bits per token, in groups of channels.

    A group's numbers become ``code = round((x - min) / scale)`` with ``scale = (max - min) / (2^bits - 1)``, and are
    read as ``min + scale code``. Keys have a few channels of large numbers, so that a channel has a smaller range over
    tokens than a token over its channels; values have not. The newest ``residual`` tokens stay as they are.

    Bytes of a group of n numbers: ``n bits / 8`` for the codes and 4 for scale and minimum.

    Paper: Liu, Yuan, Jin, Zhong, Xu, Braverman, Chen, Hu 2024, KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV
    Cache, arXiv 2402.02750.

    Deviations: scale and minimum are float16 whatever the model's dtype is, rounded before the codes are found. Keys
    and values of the same tokens are coded: all but the newest ``residual`` and what is left over of a group. In the
    paper's code the keys of between 0 and ``residual - 1`` newest tokens stay, and the values of exactly ``residual``;
    there a group of equal numbers divides by zero. Where ``group`` does not divide the size of a value, the whole value
    is one group. New tokens are coded 64 or more at a time.
    """

    bits: int = Field(2, ge=2, le=4, multiple_of=2, description="bits of a code, 2 or 4")
    group: int = Field(32, ge=1, description="tokens of a group of keys, and channels of a group of values")
    residual: int = Field(128, ge=0, description="newest tokens that stay as they are")

    @property
    def exact(self) -> int:
        """The newest tokens."""
        return self.residual

    @property
    def error(self) -> float:
        """A step over the square root of 12, for the expected range of a group of normally distributed numbers."""
        expected = 2 * math.sqrt(2 * math.log(2 * max(self.group, 64)))
        return float(expected / (2**self.bits - 1) / math.sqrt(12))

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def encode(self, heads: PlainHeads) -> Mapping[str, Tensor]:
        """Codes, scales and minima of both."""
        keys = _grouped(heads.keys.transpose(1, 2), self.group)
        values = _grouped(heads.values, self._channels(heads.values.shape[-1]))
        return {
            f"{name}_{field}": part
            for name, x in (("key", keys), ("value", values))
            for field, part in quantised(x, self.bits)._asdict().items()
        }

    def decode(self, heads: CodedHeads) -> tuple[Float[Tensor, "R L Dk"], Float[Tensor, "R L Dv"]]:
        """``min + scale code``."""
        held = (
            MinMaxCodes(*(heads.tensors[f"{name}_{field}"] for field in MinMaxCodes._fields))
            for name in ("key", "value")
        )
        sizes = (self.group, self._channels(heads.dims[1]))
        keys, values = (dequantised(codes, self.bits, size) for codes, size in zip(held, sizes, strict=True))
        return keys.flatten(-2).transpose(1, 2).to(heads.dtype), values.flatten(-2).to(heads.dtype)

    def _channels(self, dim: int) -> int:
        return self.group if dim % self.group == 0 else dim


def _grouped(x: Tensor, size: int) -> Tensor:
    """The last dimension in groups of this size."""
    return x.reshape(*x.shape[:-1], -1, size)
