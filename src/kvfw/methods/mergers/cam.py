"""CaM (Zhang et al. 2024), in expectation."""

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from kvfw.core.ops.folding import heaviest
from kvfw.core.parts.part import Part
from kvfw.core.state.slots import take
from kvfw.core.state.state import KVState


class CaM(Part):
    """Adds a part of every dropped value to the next kept ones, the more the more it was attended to.

    Kept are the tokens of most weight a. A dropped token e gives ``p_e v_e / m`` to each of the m = ``spread`` kept
    tokens that follow it (as many as there are), with ``p_e = min(1, a_e / mean of their a)``. Keys stay.

    Paper: Zhang et al. 2024, CaM: Cache Merging for Memory-efficient LLMs Inference, ICML 2024.

    Deviations: the paper tosses a coin with probability p_e; here its expectation is added, so that nothing is
    random. The paper merges at every step of decoding; here the prompt is compressed at once. Masses count the
    parts that were added; as in the paper they do not count in attention unless ``bias=log``.
    """

    rows_apart: ClassVar[bool] = True
    loses_mass: ClassVar[bool] = True

    spread: int = Field(32, ge=1, description="kept tokens that share a dropped value")

    def merge(self, state: KVState, weights: Float[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"]) -> KVState:
        """See :class:`kvfw.core.contracts.parts.Merger`."""
        kept = heaviest(state, weights, budget)
        dropped = state.valid & ~kept
        top = weights.float().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        a = weights.float() / top
        slots = take(state, kept)
        heights = torch.nn.functional.pad(
            take(replace(state, bias=a), kept).bias.masked_fill(~slots.valid, 0.0), (1, 0)
        )
        heights = heights.cumsum(-1)
        # Kept slots are right-aligned: the next after a dropped token is the number of kept ones before it.
        width = slots.width
        first = width - kept.sum(-1, keepdim=True) + kept.cumsum(-1)
        after = (first + self.spread).clamp(max=width)
        count = after - first
        mean = (heights.gather(2, after) - heights.gather(2, first)) / count.clamp(min=1)
        given = (a / mean.clamp(min=1e-30)).clamp(max=1) / count.clamp(min=1) * (dropped & (count > 0))
        shared = torch.cat((state.values, state.mass[..., None]), -1).masked_fill(~state.valid[..., None], 0.0)
        shared = given[..., None] * shared
        # Added at the first of the m slots, taken off after the last, and summed up along the slots.
        steps = shared.new_zeros(*kept.shape[:2], width + 1, shared.shape[-1])
        at = (part[..., None].expand_as(shared) for part in (first, after))
        steps = steps.scatter_add(2, next(at), shared).scatter_add(2, next(at), -shared)
        added = torch.where((given > 0).any(-1)[..., None, None], steps.cumsum(2)[:, :, :width], 0.0)
        touched = steps.new_zeros(*kept.shape[:2], width + 1).scatter_add(2, first, (given > 0).float())
        touched = touched.scatter_add(2, after, -(given > 0).float()).cumsum(-1)[..., :width] > 0.5
        touched &= slots.valid
        return replace(
            slots,
            values=torch.where(touched[..., None], slots.values + added[..., :-1], slots.values),
            mass=torch.where(touched, slots.mass + added[..., -1], slots.mass),
        )
