"""The two generic stage forms, which every method is built from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.compress.merging import Merging, check_mass
from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.contracts.parts import Merger, Scorer, Selector, Space
from kvfw.core.parts.part import PartOption, StageForm
from kvfw.core.parts.spec import Kind
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.rope import Rope, rotate, unrotate
from kvfw.core.state.slots import chosen_slots, take
from kvfw.core.state.state import KVState
from kvfw.errors import RunError

ScoreOf = Callable[[Scorer], Float[Tensor, "B Hkv N"]]


@dataclass(frozen=True)
class Outcome:
    """What a stage did.

    Args:
        kept: slots of the prompt to keep exactly.
        merged: new slots, or a pending merge (pending merges of several layers run as one batch), or None.
        merged_from: slots the new ones stand for, none of them kept; by default all that are left.
    """

    kept: Bool[Tensor, "B Hkv N"]
    merged: KVState | Merging | None = None
    merged_from: Bool[Tensor, "B Hkv N"] | None = None


@runtime_checkable
class Stage(Protocol):
    """A stage form, as the compressor sees it."""

    consumes_rest: ClassVar[bool]
    loses_mass: ClassVar[bool]

    @property
    def moves_positions(self) -> bool:
        """Whether kept keys are re-rotated, away from their positions in the prompt."""

    @property
    def needs(self) -> Needs:
        """What must be observed for its parts."""

    def run(
        self, obs: Observation, score_of: ScoreOf, budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
    ) -> Outcome:
        """Turns the eligible slots of each head into exactly ``budget``, which is 0 or less than the eligible count.

        Kept and merged slots both count. ``obs`` shows only what the stage needs; ``score_of`` is its
        :meth:`kvfw.core.state.observation.Observation.score`.
        """

    def finish(self, state: KVState, rope: Rope | None, active: Bool[Tensor, "B Hkv"]) -> KVState:
        """A last change to the compressed cache after all stages ran; heads that are not ``active`` must not change.

        ``active`` marks the heads in which the stage has slots.
        """


class Select(StageForm):
    """Keeps the tokens a selector chooses by a scorer's scores: ``select(scorer=...,selector=topk)``.

    With ``positions=cache`` the finished cache is re-rotated as if its slots were consecutive tokens ending where the
    prompt ends: of N slots after L tokens, slot i moves to position ``L - N + i``.
    """

    scorer: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER), Field(description="ranks the tokens")]
    selector: Annotated[
        Selector, SkipValidation, PartOption(Kind.SELECTOR, "topk"), Field(description="chooses by rank")
    ]
    positions: Literal["original", "cache"] = Field("original", description="rotate keys by prompt or cache position")

    @property
    def ranking(self) -> Scorer:
        """Its scorer."""
        return self.scorer

    @property
    def moves_positions(self) -> bool:
        """See :class:`Stage`."""
        return self.positions == "cache"

    @property
    def needs(self) -> Needs:
        """What the scorer and the selector need."""
        return needs_of(self.scorer) | needs_of(self.selector, "selector")

    def run(
        self, obs: Observation, score_of: ScoreOf, budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
    ) -> Outcome:
        """See :class:`Stage`."""
        scores, who = score_of(self.scorer), f"selector {type(self.selector).__name__}"
        with blamed(f"{who} in layer {obs.layer}"):
            kept = self.selector.select(scores, budget, eligible, obs.narrowed(needs_of(self.selector, "selector")))
        check_kept(kept, eligible, budget, who)
        return Outcome(kept=kept)

    def finish(self, state: KVState, rope: Rope | None, active: Bool[Tensor, "B Hkv"]) -> KVState:
        """See :class:`Stage`."""
        return closed_up(state, rope, active) if self.positions == "cache" and rope is not None else state


class Merge(StageForm):
    """Merges all slots that are left: ``merge(merger=...,space=post,weight=snapkv,bias=none)``.

    Slots the merger leaves unchanged keep their stored key, value, position and bias bit for bit, so a cluster of one
    token costs no precision. With ``bias=log`` ``log mass`` is added to a new slot's attention logit: merging tokens
    with equal keys and values is then exact. With ``bias=none`` it gets the bias its merger gives it; merging slots of
    equal bias keeps that bias.
    """

    consumes_rest: ClassVar[bool] = True

    merger: Annotated[Merger, SkipValidation, PartOption(Kind.MERGER), Field(description="turns many slots into few")]
    space: Annotated[Space, SkipValidation, PartOption(Kind.SPACE, "post"), Field(description="where keys are merged")]
    weight: Annotated[
        Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv"), Field(description="its scores weight the merger")
    ]
    bias: Literal["none", "log"] = Field("none", description="add log mass to each merged slot's attention logit")

    @property
    def ranking(self) -> Scorer:
        """The scorer that weights the merger."""
        return self.weight

    @property
    def moves_positions(self) -> bool:
        """See :class:`Stage`."""
        return False

    @property
    def needs(self) -> Needs:
        """What the weighting scorer needs."""
        return needs_of(self.weight)

    def run(
        self, obs: Observation, score_of: ScoreOf, budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
    ) -> Outcome:
        """See :class:`Stage`."""
        tokens = take(obs.state, eligible)
        weights = take_scores(score_of(self.weight), eligible, tokens.width).masked_fill(~tokens.valid, 0.0)
        if bool(((weights < 0) | ~weights.isfinite()).any()):
            raise RunError(
                f"scorer {type(self.weight).__name__} gave a negative or infinite score in layer {obs.layer}; "
                "where scores weight a merge they must be finite and 0 or more"
            )
        merging = Merging(tokens, weights, budget, self.merger, self.space, obs.rope, self.bias == "log", obs.layer)
        return Outcome(kept=torch.zeros_like(eligible), merged=merging)

    def finish(self, state: KVState, rope: Rope | None, active: Bool[Tensor, "B Hkv"]) -> KVState:
        """See :class:`Stage`."""
        return state


def check_kept(kept: object, eligible: Bool[Tensor, "B Hkv N"], budget: Int64[Tensor, "B Hkv"], who: str) -> None:
    """Raises a RunError that names ``who`` unless ``kept`` is a mask of exactly ``budget`` eligible slots per head."""
    counts = _mask(kept, eligible, who, "kept").sum(-1)
    if not torch.equal(counts, budget):
        raise RunError(f"{who} kept {counts.tolist()} tokens where {budget.tolist()} were asked for")


def check_outcome(
    outcome: object, stage: Stage, obs: Observation, budget: Int64[Tensor, "B Hkv"], eligible: Bool[Tensor, "B Hkv N"]
) -> Outcome:
    """The stage's outcome, checked, with ``merged_from`` filled in.

    Raises:
        RunError: it uses slots it may not use, misses its budget, or loses or invents tokens.
    """
    who = f"stage {type(stage).__name__}"
    if not isinstance(outcome, Outcome) or not isinstance(outcome.merged, KVState | Merging | None):
        said = type(outcome.merged if isinstance(outcome, Outcome) else outcome).__name__
        raise RunError(f"{who} returned {said}; an Outcome is expected, whose new slots are a KVState or None")
    kept, merged = _mask(outcome.kept, eligible, who, "kept"), outcome.merged
    if merged is None:
        check_kept(kept, eligible, budget, who)
        return outcome
    made = merged.budget if isinstance(merged, Merging) else merged.valid.sum(-1)
    if made.shape != budget.shape or not torch.equal(kept.sum(-1) + made, budget):
        raise RunError(
            f"{who} kept {kept.sum(-1).tolist()} tokens and made {made.tolist()} new slots in layer {obs.layer} where "
            f"its budget was {budget.tolist()}; both count"
        )
    left = eligible & ~kept
    source = left if outcome.merged_from is None else _mask(outcome.merged_from, left, who, "merged")
    new = merged.tokens if isinstance(merged, Merging) else merged
    check_mass(new.mass.sum(-1), (obs.state.mass * source).sum(-1), stage.loses_mass, who, obs.layer)
    return replace(outcome, merged_from=source)


def _mask(kept: object, eligible: Bool[Tensor, "B Hkv N"], who: str, did: str) -> Bool[Tensor, "B Hkv N"]:
    if not isinstance(kept, Tensor):
        raise RunError(f"{who} returned {type(kept).__name__} where a mask of the slots it {did} is expected")
    if kept.shape != eligible.shape or kept.dtype != torch.bool:
        raise RunError(
            f"{who} returned {kept.dtype} of shape {tuple(kept.shape)}; a bool mask of shape "
            f"{tuple(eligible.shape)} is expected"
        )
    if bool((kept & ~eligible).any()):
        raise RunError(f"{who} {did} tokens that are protected or already taken")
    return kept


def take_scores(
    scores: Float[Tensor, "B Hkv N"], chosen: Bool[Tensor, "B Hkv N"], width: int
) -> Float[Tensor, "B Hkv K"]:
    """Scores of the chosen slots, in the layout of :func:`kvfw.core.state.slots.take`."""
    return scores.gather(-1, chosen_slots(chosen, width))


def closed_up(state: KVState, rope: Rope, active: Bool[Tensor, "B Hkv"]) -> KVState:
    """Re-rotates the slots of active heads to consecutive positions up to the last; unmoved slots keep their bits."""
    last = state.positions.max(dim=-1, keepdim=True).values
    steps = torch.arange(1 - state.width, 1, device=last.device, dtype=last.dtype)
    positions = torch.where(state.valid & active[..., None], last + steps, state.positions)
    moved = (positions != state.positions)[..., None]
    turned = rotate(unrotate(state.keys, state.positions, rope), positions, rope).to(state.keys.dtype)
    return replace(state, keys=torch.where(moved, turned, state.keys), positions=positions)
