"""Packs small whole numbers into bytes, and scales into two."""

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor

from kvfw.errors import RunError


def packed(codes: UInt8[Tensor, "*shape n"], bits: int) -> UInt8[Tensor, "*shape bytes"]:
    """Codes below ``2 ** bits``, ``bits`` from 1 to 8, in ``bits / 8`` bytes each, rounded up over the last dimension.

    The bits of a code that is no power of two wide lie in several planes: 3 bits are a plane of 2 and one of 1.
    """
    planes, low = [], 0
    for width in _planes(bits):
        each = 8 // width
        part = (codes >> low) & (2**width - 1)
        part = torch.nn.functional.pad(part, (0, -part.shape[-1] % each))
        part = part.view(*part.shape[:-1], -1, each)
        shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
        planes.append((part << shifts).sum(-1, dtype=torch.uint8))
        low += width
    return torch.cat(planes, -1)


def unpacked(data: UInt8[Tensor, "*shape bytes"], bits: int, count: int) -> UInt8[Tensor, "*shape n"]:
    """The ``count`` codes of the last dimension that :func:`packed` packed."""
    found, low, start = torch.zeros(1, dtype=torch.uint8, device=data.device), 0, 0
    for width in _planes(bits):
        size = -(-count * width // 8)
        shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=data.device)
        part = (data[..., start : start + size, None] >> shifts) & (2**width - 1)
        found = found | (part.flatten(-2)[..., :count] << low)
        low, start = low + width, start + size
    return found


def halved(x: Float[Tensor, "*shape"]) -> Float16[Tensor, "*shape"]:
    """Numbers in float16.

    Raises:
        RunError: they are too large.
    """
    found = x.half()
    if not bool(found.isfinite().all()):
        raise RunError(
            f"numbers up to {float(x.abs().max()):.3g} cannot be scaled by float16, which ends at 65504; use a codec "
            "that has no scales"
        )
    return found


def _planes(bits: int) -> list[int]:
    return [width for width in (8, 4, 2, 1) if bits & width]
