"""KeyDiff's block-by-block eviction (Park et al. 2025, arXiv 2504.15364)."""

from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.parts import Scorer
from kvfw.core.ops.topk import highest
from kvfw.core.parts.part import Part, PartOption
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation


class Blockwise(Part):
    """Reads the middle block by block and keeps the budget's best of what it holds after each, scored anew.

    The running set R starts as a head's first K eligible tokens, K its budget. For every following block b of ``size``
    tokens, the ``scorer`` scores R and b as if they and the protected tokens before them were the whole cache, and R
    becomes the K best of R and b, ties to the lowest position. The stage's own scores are not used.

    Paper: Park et al. 2025, KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments, arXiv 2504.15364, blocks of 128.

    Deviations: the prompt's attention is over when blocks are chosen, so tokens of later blocks have seen those already
    dropped. Only what a scorer computes from the slots changes from block to block: attention observed during the
    prompt stays that of the whole prompt. Every block scores the full width.
    """

    scorer: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "keydiff"), Field(description="scores the running set")
    ]
    size: int = Field(128, ge=1, description="tokens per block")

    @property
    def needs(self) -> Needs:
        """What the scorer needs."""
        return needs_of(self.scorer)

    def select(
        self,
        scores: Float[Tensor, "B Hkv N"],
        budget: Int64[Tensor, "B Hkv"],
        eligible: Bool[Tensor, "B Hkv N"],
        obs: Observation,
    ) -> Bool[Tensor, "B Hkv N"]:
        """Mask of the last running set."""
        place, slot = eligible.cumsum(-1) - 1, torch.arange(eligible.shape[-1], device=eligible.device)
        start = budget[..., None]
        running = eligible & (place < start)
        for _ in range(-(-int((eligible.sum(-1) - budget).max()) // self.size)):
            held = running | (eligible & (place >= start) & (place < start + self.size))
            last = slot.masked_fill(~held, -1).amax(-1, keepdim=True)
            valid = held | (obs.state.valid & obs.protected & (slot <= last))
            # Scores known for the whole prompt are none of this smaller cache's.
            smaller = replace(obs.state, mass=obs.state.mass.masked_fill(~valid, 0.0))
            seen = replace(obs, state=smaller, score_of=None)
            running = highest(seen.score(self.scorer).float(), budget, held)
            start = start + self.size
        return running
