"""A composition bound to its options: an immutable map from an observation and a budget to a smaller state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import cast

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from kvfw.core.compose.budget import Amount, check_counts, divide
from kvfw.core.compose.composition import Composition
from kvfw.core.compress.arrangement import Arrangement
from kvfw.core.compress.merging import Merging, merge_together
from kvfw.core.compress.stages import Stage, check_outcome
from kvfw.core.contracts.blame import blamed, needs_of
from kvfw.core.contracts.parts import Scorer
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import KVState
from kvfw.errors import RunError


@dataclass(frozen=True)
class Compressor:
    """Compresses one layer's cache.

    Args:
        composition: what to do with the middle.
        amount: how much of the middle to keep.
        sinks, recent: first and last tokens of the prompt that are always kept.
    """

    composition: Composition
    amount: Amount
    sinks: int
    recent: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The composition's stages in the order they run."""
        return tuple(cast(Stage, each.stage) for each in self.composition.stages)

    @property
    def needs(self) -> Needs:
        """What must be observed for all stages."""
        return reduce(Needs.__or__, (stage.needs for stage in self.stages), Needs())

    @property
    def moves_positions(self) -> bool:
        """Whether kept tokens end up rotated to other positions than in the prompt."""
        return any(stage.moves_positions for stage in self.stages)

    def middle(self, lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Tokens in the middle of prompts of the given lengths (real tokens)."""
        return (lengths - self.sinks - self.recent).clamp(min=0)

    def middle_slots(self, lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Slots per KV head for the middle of prompts of the given lengths (real tokens).

        Raises:
            BudgetError: a prompt has a middle but its budget is 0 slots.
        """
        return self._each(self.amount.middle_slots, lengths)

    def standing_slots(self, lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Slots per KV head for the middle that compression while decoding goes down to, whatever is added.

        ``slots=`` counts as said; ``ratio=`` and ``keep=`` mean the part of the prompt's own middle that they are.

        Raises:
            BudgetError: there is no such slot.
        """
        return self._each(self.amount.standing_slots, lengths)

    def _each(self, slots: Callable[[int, int, int], int], lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        counts = [slots(middle, self.sinks, self.recent) for middle in self.middle(lengths).tolist()]
        return torch.tensor(counts, dtype=torch.int64, device=lengths.device)

    def compress(self, obs: Observation, budget: Int64[Tensor, "B Hkv"], scores: "Scores | None" = None) -> KVState:
        """Exactly the protected tokens plus ``budget`` slots per row and head, fewer only where tokens are fewer.

        Pure: the result depends on nothing but the observation and the budget. Stages run in order, each seeing only
        what earlier ones left. A stage whose slots reach its tokens passes them bit for bit and calls no part; one
        whose share rounds to 0 slots does nothing.

        Args:
            obs: the layer.
            budget: slots for the middle.
            scores: what scorers said of this very observation so far; it is used and added to, so that compositions of
                one prompt share it. A new one by default.

        Raises:
            RunError: a part returned something its contract does not allow, or keys or values are not finite.
            ValueError: ``scores`` are of another observation than the one to be compressed.
        """
        return self.compress_layers([LayerWork(obs, budget, scores)])[0]

    def compress_layers(self, layers: Sequence["LayerWork"]) -> list[KVState]:
        """:meth:`compress` of several layers, the same to the bit, in less time: what is merged is merged together.

        What is to be merged of all of them is held at once.

        Raises:
            RunError, ValueError: as :meth:`compress`.
        """
        plans = [self._planned(layer) for layer in layers]
        return [
            self._finished(arranged.state(plan.obs.state), plan)
            for plan, arranged in zip(plans, _arranged(plans), strict=True)
        ]

    def compress_with_sums(
        self, obs: Observation, budget: Int64[Tensor, "B Hkv"]
    ) -> tuple[KVState, dict[int, Float32[Tensor, "B Hkv K"]]]:
        """The same, and the observation's column sums as those of the slots that are left.

        See :meth:`kvfw.core.compress.arrangement.Arrangement.carried`.
        """
        plan = self._planned(LayerWork(obs, budget))
        (arranged,) = _arranged([plan])
        return self._finished(arranged.state(obs.state), plan), arranged.carried(obs.state, obs.column_sums)

    def _finished(self, state: KVState, plan: "_LayerPlan") -> KVState:
        for stage, slots in zip(self.stages, plan.shares, strict=True):
            state = stage.finish(state, plan.obs.rope, slots > 0)
        return state

    def _planned(self, layer: "LayerWork") -> "_LayerPlan":
        """What each stage does with what earlier ones left."""
        obs, shares = layer.obs, self._stage_budgets(layer.budget)
        known = Scores(obs) if layer.scores is None else layer.scores
        if known.obs is not obs:
            raise ValueError("these scores are of another observation than the one to be compressed")
        known.check_finite()
        count = obs.middle.sum(-1)
        whole = (layer.budget >= count)[..., None]
        eligible, kept = obs.middle & ~whole, obs.state.valid & (obs.protected | whole)
        merged: list[tuple[KVState | Merging, Tensor]] = []
        for stage, slots in zip(self.stages, shares, strict=True):
            who, count = f"stage {type(stage).__name__}", eligible.sum(-1)
            if merged and bool(((slots > count) & ~whole[..., 0]).any()):
                raise RunError(
                    f"{who} has {slots.tolist()} slots to fill in layer {obs.layer}, but earlier stages left "
                    f"{count.tolist()} tokens. A stage that merges all it sees sets consumes_rest = True and comes "
                    "last; any other says in Outcome.merged_from which slots it took in"
                )
            passes = (slots >= count) & (slots > 0)
            kept = kept | (eligible & passes[..., None])
            eligible = eligible & ~passes[..., None]
            rest = torch.where(passes, 0, slots)
            if not bool((rest > 0).any()):
                continue
            open_slots = eligible & (rest > 0)[..., None]
            seen = known.shown(stage.needs)
            outcome = check_outcome(stage.run(seen, seen.score, rest, open_slots), stage, obs, rest, open_slots)
            kept = kept | outcome.kept
            eligible = eligible & ~outcome.kept
            if outcome.merged is not None and outcome.merged_from is not None:
                merged.append((outcome.merged, outcome.merged_from))
                eligible = eligible & ~outcome.merged_from
        return _LayerPlan(obs, shares, kept, tuple(merged))

    def _stage_budgets(self, budget: Int64[Tensor, "B Hkv"]) -> list[Int64[Tensor, "B Hkv"]]:
        """Every head's budget divided over the stages by their shares, exactly."""
        shares = tuple(stage.share for stage in self.composition.stages)
        parts = [divide(int(total), shares) for total in budget.flatten().tolist()]
        table = torch.tensor(parts, dtype=torch.int64, device=budget.device)
        return [table[:, i].view_as(budget) for i in range(len(shares))]


@dataclass(frozen=True)
class LayerWork:
    """A layer to be compressed; see :meth:`Compressor.compress`."""

    obs: Observation
    budget: Int64[Tensor, "B Hkv"]
    scores: "Scores | None" = None


@dataclass(frozen=True)
class _LayerPlan:
    """What is to become of a layer: an :class:`Arrangement` whose new slots may still have to be merged."""

    obs: Observation
    shares: list[Int64[Tensor, "B Hkv"]]
    kept: Bool[Tensor, "B Hkv N"]
    merged: tuple[tuple[KVState | Merging, Bool[Tensor, "B Hkv N"]], ...]


def _arranged(plans: Sequence[_LayerPlan]) -> list[Arrangement]:
    """The plans with everything merged that they leave to be merged."""
    new = iter(merge_together([it for plan in plans for it, _ in plan.merged if isinstance(it, Merging)]))
    return [
        Arrangement(
            plan.kept, tuple((next(new) if isinstance(it, Merging) else it, taken) for it, taken in plan.merged)
        )
        for plan in plans
    ]


class Scores:
    """Scores of one observation: every scorer is asked when its scores are first needed, and only once.

    A scorer sees only what it asked for itself, so what it says does not depend on who asks first.
    """

    def __init__(self, obs: Observation) -> None:
        self.obs = obs
        self._known: dict[Scorer, Float[Tensor, "B Hkv N"]] = {}
        self._finite = False

    def check_finite(self) -> None:
        """As :func:`check_finite`, of this observation, once."""
        if not self._finite:
            check_finite(self.obs)
            self._finite = True

    def of(self, scorer: Scorer) -> Float[Tensor, "B Hkv N"]:
        """The scorer's scores.

        Raises:
            RunError: as :func:`checked_scores`.
        """
        if scorer not in self._known:
            self._known[scorer] = checked_scores(scorer, replace(self.obs, score_of=self.of))
        # A copy: what one composition's selector does to its scores is no other's business.
        return self._known[scorer].clone()

    def shown(self, needs: Needs) -> Observation:
        """What a stage of such needs sees; the scores it asks for are these."""
        return replace(self.obs, score_of=self.of).narrowed(needs)


def check_finite(obs: Observation) -> None:
    """Refuses keys and values that mean nothing: whatever was kept of them would look like a result.

    Raises:
        RunError: a key or a value of the layer is NaN or infinite.
    """
    for name, part in (("keys", obs.state.keys), ("values", obs.state.values)):
        # One pass without a copy; NaN and infinity survive addition. Only a sum that looks wrong is looked into.
        if bool(part.sum(dtype=torch.float32).isfinite()):
            continue
        if bool((~part.isfinite().all(-1) & obs.state.valid).any()):
            raise RunError(
                f"layer {obs.layer} has {name} that are NaN or infinite, so there is nothing to compress. Check the "
                "model's weights; if it runs in float16, use bfloat16 or float32, which do not overflow"
            )


def checked_scores(scorer: Scorer, obs: Observation) -> Float[Tensor, "B Hkv N"]:
    """Scores by what the scorer asked for only.

    Raises:
        RunError: wrong shape, or NaN for a token it has to rank.
    """
    name = type(scorer).__name__
    with blamed(f"scorer {name} in layer {obs.layer}"):
        scores = scorer.score(obs.narrowed(needs_of(scorer)))
    if not isinstance(scores, torch.Tensor):
        raise RunError(f"scorer {name} returned {type(scores).__name__} where a tensor of scores is expected")
    if scores.shape != obs.state.mass.shape:
        raise RunError(
            f"scorer {name} returned shape {tuple(scores.shape)}; one score per row, KV head and slot is expected: "
            f"{tuple(obs.state.mass.shape)}"
        )
    if bool((scores.isnan() & obs.middle).any()):
        raise RunError(f"scorer {name} gave NaN in layer {obs.layer}; are the model's keys finite?")
    return scores


def compressor(composition: Composition, amount: Amount, *, sinks: int, recent: int) -> Compressor:
    """Binds a composition to its options.

    Raises:
        BudgetError: negative sinks or recent.
    """
    check_counts(sinks, recent)
    return Compressor(composition, amount, sinks, recent)
