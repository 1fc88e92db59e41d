"""The compressor: an immutable map from an observation and a budget to a smaller state."""

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
        composition: how to compress the middle.
        amount: how much of the middle to keep.
        sinks, recent: number of first and last tokens of the prompt that are always kept.
    """

    composition: Composition
    amount: Amount
    sinks: int
    recent: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The composition's stages, in the order they run."""
        return tuple(cast(Stage, each.stage) for each in self.composition.stages)

    @property
    def needs(self) -> Needs:
        """Everything the stages need observed."""
        return reduce(Needs.__or__, (stage.needs for stage in self.stages), Needs())

    @property
    def moves_positions(self) -> bool:
        """Whether kept keys are re-rotated, away from their positions in the prompt."""
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
        """Slots per KV head that compression while decoding brings the middle down to, however much is appended.

        ``slots=`` is used as given; ``ratio=`` and ``keep=`` refer to the prompt's own middle.

        Raises:
            BudgetError: that leaves no slot.
        """
        return self._each(self.amount.standing_slots, lengths)

    def _each(self, slots: Callable[[int, int, int], int], lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        counts = [slots(middle, self.sinks, self.recent) for middle in self.middle(lengths).tolist()]
        return torch.tensor(counts, dtype=torch.int64, device=lengths.device)

    def compress(self, obs: Observation, budget: Int64[Tensor, "B Hkv"], scores: "Scores | None" = None) -> KVState:
        """Compresses one layer to its protected tokens plus exactly ``budget`` slots (fewer only if tokens are fewer).

        Pure: the result depends only on the observation and the budget. Stages run in order, each on the tokens earlier
        ones left. A stage with at least as many slots as tokens passes them through bit for bit and calls no part; one
        whose share rounds to 0 slots does nothing.

        Args:
            obs: the layer.
            budget: slots for the middle.
            scores: cache of scores of this same observation, read and extended; pass it to share scores between
                compositions of one prompt. A new one by default.

        Raises:
            RunError: a part broke its contract, or keys or values are not finite.
            ValueError: ``scores`` belong to another observation.
        """
        return self.compress_layers([LayerWork(obs, budget, scores)])[0]

    def compress_layers(self, layers: Sequence["LayerWork"]) -> list[KVState]:
        """:meth:`compress` for several layers: same bits, same errors, faster, because their merges run as one batch.

        The slots to merge of all layers are held in memory at once.
        """
        plans = [self._planned(layer) for layer in layers]
        pairs = zip(plans, _arranged(plans), strict=True)
        return [self._finished(arranged.state(plan.obs.state), plan) for plan, arranged in pairs]

    def compress_with_sums(
        self, obs: Observation, budget: Int64[Tensor, "B Hkv"]
    ) -> tuple[KVState, dict[int, Float32[Tensor, "B Hkv K"]]]:
        """:meth:`compress`, and the column sums carried over to the new slots; see ``Arrangement.carried``."""
        plan = self._planned(LayerWork(obs, budget))
        (arranged,) = _arranged([plan])
        return self._finished(arranged.state(obs.state), plan), arranged.carried(obs.state, obs.column_sums)

    def _finished(self, state: KVState, plan: "_LayerPlan") -> KVState:
        for stage, slots in zip(self.stages, plan.shares, strict=True):
            state = stage.finish(state, plan.obs.rope, slots > 0)
        return state

    def _planned(self, layer: "LayerWork") -> "_LayerPlan":
        """Runs the stages, each on the tokens earlier ones left."""
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
        """Every head's budget, divided exactly over the stages by their shares."""
        shares = tuple(stage.share for stage in self.composition.stages)
        parts = [divide(int(total), shares) for total in budget.flatten().tolist()]
        table = torch.tensor(parts, dtype=torch.int64, device=budget.device)
        return [table[:, i].view_as(budget) for i in range(len(shares))]


@dataclass(frozen=True)
class LayerWork:
    """A layer to compress; see :meth:`Compressor.compress`."""

    obs: Observation
    budget: Int64[Tensor, "B Hkv"]
    scores: "Scores | None" = None


@dataclass(frozen=True)
class _LayerPlan:
    """The plan for a layer: an :class:`Arrangement` whose new slots may still have to be merged."""

    obs: Observation
    shares: list[Int64[Tensor, "B Hkv"]]
    kept: Bool[Tensor, "B Hkv N"]
    merged: tuple[tuple[KVState | Merging, Bool[Tensor, "B Hkv N"]], ...]


def _arranged(plans: Sequence[_LayerPlan]) -> list[Arrangement]:
    """Runs all pending merges of the plans."""
    new = iter(merge_together([it for plan in plans for it, _ in plan.merged if isinstance(it, Merging)]))
    merged = [tuple((next(new) if isinstance(it, Merging) else it, taken) for it, taken in p.merged) for p in plans]
    return [Arrangement(plan.kept, pairs) for plan, pairs in zip(plans, merged, strict=True)]


class Scores:
    """Lazy cache of one observation's scores: each scorer runs once, when its scores are first needed.

    A scorer sees only what it declared in its own needs, so its scores do not depend on which part asks first.
    """

    def __init__(self, obs: Observation) -> None:
        self.obs = obs
        self._known: dict[Scorer, Float[Tensor, "B Hkv N"]] = {}
        self._finite = False

    def check_finite(self) -> None:
        """Runs :func:`check_finite` on this observation, once."""
        if not self._finite:
            check_finite(self.obs)
            self._finite = True

    def of(self, scorer: Scorer) -> Float[Tensor, "B Hkv N"]:
        """The scorer's scores, checked by :func:`checked_scores`."""
        if scorer not in self._known:
            self._known[scorer] = checked_scores(scorer, replace(self.obs, score_of=self.of))
        # A copy, so that a selector that changes its scores in place cannot affect another composition.
        return self._known[scorer].clone()

    def shown(self, needs: Needs) -> Observation:
        """The observation as a stage with these needs sees it; it takes scores from this cache."""
        return replace(self.obs, score_of=self.of).narrowed(needs)


def check_finite(obs: Observation) -> None:
    """Rejects keys and values that are NaN or infinite: compressed, they would still look like a result.

    Raises:
        RunError: a key or a value of a real token is NaN or infinite.
    """
    for name, part in (("keys", obs.state.keys), ("values", obs.state.values)):
        # One pass without a copy: NaN and infinity survive addition. Only a suspicious sum is examined.
        if bool(part.sum(dtype=torch.float32).isfinite()):
            continue
        if bool((~part.isfinite().all(-1) & obs.state.valid).any()):
            raise RunError(
                f"layer {obs.layer} has {name} that are NaN or infinite, so there is nothing to compress. Check the "
                "model's weights; if it runs in float16, use bfloat16 or float32, which do not overflow"
            )


def checked_scores(scorer: Scorer, obs: Observation) -> Float[Tensor, "B Hkv N"]:
    """The scorer's scores, computed only from what it declared in its needs.

    Raises:
        RunError: wrong type or shape, or NaN for a token it has to rank.
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
    """Binds a composition to its options; negative sinks or recent raise a BudgetError."""
    check_counts(sinks, recent)
    return Compressor(composition, amount, sinks, recent)
