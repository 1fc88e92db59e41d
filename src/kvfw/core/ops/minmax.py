"""Asymmetric quantisation of groups of numbers between their minimum and maximum."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from kvfw.core.ops.packing import halved, packed, unpacked


class MinMaxCodes(NamedTuple):
    """Groups of n numbers: packed codes, and per group the step between two codes and the number that code 0 is."""

    codes: UInt8[Tensor, "*groups bytes"]
    scale: Float16[Tensor, "*groups"]
    zero: Float16[Tensor, "*groups"]


def quantised(x: Float[Tensor, "*groups n"], bits: int) -> MinMaxCodes:
    """``round((x - min) / scale)`` with ``scale = (max - min) / (2 ** bits - 1)``, group by group.

    Scale and minimum are rounded to float16 first, so that codes fit what is held. The error is at most half a step,
    and what this rounding moves the ends of the range by: 1 part in 1000 of the largest number.

    Raises:
        RunError: a number is too large for float16.
    """
    x = x.float()
    low, high = x.amin(-1), x.amax(-1)
    zero = halved(low)
    scale = halved(((high - zero.float()) / (2**bits - 1)).clamp(min=0))
    step = scale.float().where(scale > 0, 1.0)[..., None]
    codes = ((x - zero.float()[..., None]) / step).round().clamp(0, 2**bits - 1)
    return MinMaxCodes(packed(codes.to(torch.uint8), bits), scale, zero)


def dequantised(held: MinMaxCodes, bits: int, count: int) -> Float[Tensor, "*groups n"]:
    """``zero + scale * code`` in float32, for groups of ``count`` numbers."""
    codes = unpacked(held.codes, bits, count)
    return torch.addcmul(held.zero.float()[..., None], codes.float(), held.scale.float()[..., None])
