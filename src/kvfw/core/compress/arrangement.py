"""The outcome of one compression: which slots stay, which are merged, and where their attention counts go."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from kvfw.core.compress.merging import match_untouched
from kvfw.core.compress.stages import take_scores
from kvfw.core.state.slots import join, rows, take
from kvfw.core.state.state import KVState


@dataclass(frozen=True)
class Arrangement:
    """Slots kept exactly (``kept``, of the old state), and pairs of new slots and the old slots they stand for."""

    kept: Bool[Tensor, "B Hkv N"]
    merged: tuple[tuple[KVState, Bool[Tensor, "B Hkv N"]], ...] = ()

    def state(self, before: KVState) -> KVState:
        """The compressed state, ordered by position."""
        return reduce(join, (new for new, _ in self.merged), take(before, self.kept))

    def carried(
        self, before: KVState, sums: Mapping[int, Float32[Tensor, "B Hkv N"]]
    ) -> dict[int, Float32[Tensor, "B Hkv K"]]:
        """The old slots' counts, moved to the slots of :meth:`state`, in its order.

        A kept slot keeps its count; a dropped slot's count is lost. The counts of merged slots are divided over the new
        slots by mass, except that a slot the merge left unchanged keeps its own.
        """
        if not sums:
            return {}
        # The counts travel as the values of a state with the same positions and masses, so the order is the same.
        values = torch.stack(list(sums.values()), dim=-1)
        # Keys are not needed here.
        counts = take(replace(before, values=values, keys=before.keys[..., :0]), self.kept)
        for new, source in self.merged:
            old = take(before, source)
            own = torch.stack([take_scores(part, source, old.width) for part in sums.values()], dim=-1)
            shared = _shared(old, new, own * old.valid[..., None])
            counts = join(counts, replace(new, values=shared, keys=new.keys[..., :0]))
        return {distance: counts.values[..., i].contiguous() for i, distance in enumerate(sums)}


def _shared(old: KVState, new: KVState, counts: Float32[Tensor, "B Hkv M n"]) -> Float32[Tensor, "B Hkv K n"]:
    """The counts of merged slots divided over the new ones; each head's total stays the same."""
    source, untouched = match_untouched(old, new)
    own = rows(counts, source) * untouched[..., None]
    rest = (counts.sum(2) - own.sum(2)).clamp(min=0)
    mass = new.mass.masked_fill(untouched | ~new.valid, 0.0)
    share = mass / mass.sum(-1, keepdim=True).clamp(min=1)
    return own + share[..., None] * rest[:, :, None]
