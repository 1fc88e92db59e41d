"""Slots laid out in chunks, and selections that follow one order of a row's slots in all its heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from kvfw.core.ops.topk import highest, rank


@dataclass(frozen=True)
class Chunks:
    """Every row's members, in order, in chunks of equal size of which the last may be partial.

    Args:
        slots: slot of every place; meaningless where not ``real``.
        real: places that hold a member.
    """

    slots: Int64[Tensor, "B C size"]
    real: Bool[Tensor, "B C size"]

    def of(self, values: Float[Tensor, "B N"], fill: float = 0.0) -> Float64[Tensor, "B C size"]:
        """The members' values by chunk, ``fill`` elsewhere."""
        laid: Float64[Tensor, "B C size"] = values.double().gather(1, self.slots.flatten(1)).view_as(self.real)
        return laid.masked_fill(~self.real, fill)

    def back(self, values: Float64[Tensor, "B C size"], width: int) -> Float64[Tensor, "B N"]:
        """Places' values by slot, of ``width`` slots; minus infinity for slots that are no members."""
        found = values.new_full((len(values), width + 1), -torch.inf)
        slots = self.slots.masked_fill(~self.real, width)
        return found.scatter_(1, slots.flatten(1), values.flatten(1))[:, :width]


def chunks_of(members: Bool[Tensor, "B N"], size: int) -> Chunks:
    """Chunks of ``size`` members each, counted from the row's first; padding does not count."""
    count = -(-members.shape[1] // size)
    order = (~members).to(torch.uint8).argsort(dim=1, stable=True)
    slots = torch.nn.functional.pad(order, (0, count * size - members.shape[1]))
    places = torch.arange(count * size, device=members.device)
    real = places < members.sum(1, keepdim=True)
    return Chunks(slots.view(-1, count, size), real.view(-1, count, size))


def over_heads(scores: Float[Tensor, "B Hkv N"], eligible: Bool[Tensor, "B Hkv N"]) -> Float64[Tensor, "B N"]:
    """Mean of every slot's scores over the heads in which it is eligible; 0 where it is in none."""
    total = scores.double().masked_fill(~eligible, 0.0).sum(1)
    return (total / eligible.sum(1).clamp(min=1)).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def ranks(values: Float[Tensor, "B n"], real: Bool[Tensor, "B n"]) -> Float64[Tensor, "B n"]:
    """Rank of every value among the row's real ones, 0 the highest, ties to the first."""
    return rank(values[:, None], real[:, None])[:, 0].double()


def in_order(
    order: Float64[Tensor, "B N"], budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
) -> Bool[Tensor, "B Hkv N"]:
    """Every head's first ``budget`` eligible slots in one order of the row's slots, lowest first."""
    return highest(-order[:, None].expand(eligible.shape), budget, eligible)
