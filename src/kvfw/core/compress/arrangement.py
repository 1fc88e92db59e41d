"""What becomes of every slot at one compression, and of what was counted for it."""

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
    """Slots kept exactly, and slots that stand for others.

    Args:
        kept: slots of the old state that stay as they are.
        merged: new slots, each time with the slots of the old state that they stand for.
    """

    kept: Bool[Tensor, "B Hkv N"]
    merged: tuple[tuple[KVState, Bool[Tensor, "B Hkv N"]], ...] = ()

    def state(self, before: KVState) -> KVState:
        """The slots that stay, in order of position."""
        return reduce(join, (new for new, _ in self.merged), take(before, self.kept))

    def carried(
        self, before: KVState, sums: Mapping[int, Float32[Tensor, "B Hkv N"]]
    ) -> dict[int, Float32[Tensor, "B Hkv K"]]:
        """Counts of the old slots as counts of the slots of :meth:`state`, in its order.

        A slot kept takes its count with it; a dropped slot's is gone. What merged slots had between them is divided
        over the new slots by mass, except that a slot which came out of the merge as it went in keeps its own.
        """
        if not sums:
            return {}
        # The counts travel as the values of a state of the same positions and masses, so they end up in the same order.
        values = torch.stack(list(sums.values()), dim=-1)
        counts = _counting(take(replace(before, values=values), self.kept))
        for new, source in self.merged:
            old = take(before, source)
            own = torch.stack([take_scores(part, source, old.width) for part in sums.values()], dim=-1)
            shared = _shared(old, new, own * old.valid[..., None])
            counts = join(counts, _counting(replace(new, values=shared)))
        return {distance: counts.values[..., i].contiguous() for i, distance in enumerate(sums)}


def _counting(state: KVState) -> KVState:
    """The same without keys: nobody looks at them here."""
    return replace(state, keys=state.keys[..., :0])


def _shared(old: KVState, new: KVState, counts: Float32[Tensor, "B Hkv M n"]) -> Float32[Tensor, "B Hkv K n"]:
    """Counts of slots as counts of those they were merged into; each head's total stays."""
    source, untouched = match_untouched(old, new)
    own = rows(counts, source) * untouched[..., None]
    rest = (counts.sum(2) - own.sum(2)).clamp(min=0)
    mass = new.mass.masked_fill(untouched | ~new.valid, 0.0)
    share = mass / mass.sum(-1, keepdim=True).clamp(min=1)
    return own + share[..., None] * rest[:, :, None]
