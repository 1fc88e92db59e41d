"""Runs of slots of one size, so that a formula over windows or chunks of tokens is one over a tensor's dimension."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor


@dataclass(frozen=True)
class Partitions:
    """The counted slots of every head in order, cut into runs; the last run is padded.

    Args:
        order: slots, run after run; any slot where the run is padded.
        filled: False for the padding.
    """

    order: Int64[Tensor, "B Hkv P size"]
    filled: Bool[Tensor, "B Hkv P size"]

    def cut(self, x: Float[Tensor, "B Hkv N *D"]) -> Float32[Tensor, "B Hkv P size *D"]:
        """One number or vector per slot, run by run, in float32; 0 in the padding."""
        inside = self.filled.view(*self.filled.shape, *(1,) * (x.ndim - 3))
        flat = self.order.flatten(2).view(*self.order.shape[:2], -1, *(1,) * (x.ndim - 3))
        found = x.gather(2, flat.expand(-1, -1, -1, *x.shape[3:])).unflatten(2, self.order.shape[2:])
        return found.float().masked_fill(~inside, 0.0)

    def joined(self, x: Float32[Tensor, "B Hkv P size"], width: int) -> Float32[Tensor, "B Hkv N"]:
        """One number per slot of a state of this width; 0 for slots that are not counted."""
        # Padding goes to a slot of its own, which is cut off again.
        order = self.order.masked_fill(~self.filled, width).flatten(2)
        return x.new_zeros(*x.shape[:2], width + 1).scatter(2, order, x.flatten(2))[..., :width]


def partitions(counted: Bool[Tensor, "B Hkv N"], size: int) -> Partitions:
    """The counted slots in runs of ``size``, counted from the first one: independent of where padding lies."""
    width = counted.shape[-1]
    runs = max(1, -(-width // size))
    first = torch.argsort((~counted).to(torch.int8), dim=-1, stable=True)
    order = torch.nn.functional.pad(first, (0, runs * size - width)).unflatten(2, (runs, size))
    rank = torch.arange(runs * size, device=counted.device).view(runs, size)
    return Partitions(order, rank < counted.sum(-1)[..., None, None])
