"""The compressor: an immutable map from an observation and a budget to a smaller state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import cast

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from kvfw.core.compose.budget import Amount, check_counts, divide
from kvfw.core.compose.composition import Composition, Policy, ranking_of
from kvfw.core.compress.allocation import EVEN
from kvfw.core.compress.arrangement import Arrangement
from kvfw.core.compress.coding import Coder
from kvfw.core.compress.merging import Merging, merge_together
from kvfw.core.compress.refining import refined
from kvfw.core.compress.scores import Scores
from kvfw.core.compress.stages import Stage, check_outcome
from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.parts import Allocator, Scorer
from kvfw.core.parts.part import Scope, ranks_tokens, scope_of
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import KVState
from kvfw.errors import RunError, SpecError


@dataclass(frozen=True)
class Rule:
    """What a compressor does to the layers of one policy."""

    policy: Policy

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Its stages, in the order they run; none where the policy leaves its layers as they are."""
        return tuple(cast(Stage, each.stage) for each in self.policy.stages)

    @property
    def allocator(self) -> Allocator:
        """Divides the budget of its layers."""
        return self.policy.allocator if self.policy.allocator is not None else EVEN

    @property
    def ranking(self) -> Scorer | None:
        """The scorer the allocator ranks by; None if it ranks no tokens."""
        if not ranks_tokens(self.allocator):
            return None
        by: Scorer | None = getattr(self.allocator, "by", None)
        return by if by is not None else ranking_of(self.policy.terms)

    @cached_property
    def allocator_needs(self) -> Needs:
        """What the allocator may look at: nothing but shapes, or also what it and its ranking scorer need."""
        if self.scope == "shape":
            return Needs()
        needs = needs_of(self.allocator, "allocator")
        return needs if self.ranking is None else needs | needs_of(self.ranking)

    @cached_property
    def needs(self) -> Needs:
        """Everything its parts need observed."""
        finishers = [needs_of(refiner, "refiner") for refiner in self.policy.refiners]
        if self.policy.codec is not None:
            finishers.append(needs_of(self.policy.codec.value, "codec"))
        return reduce(Needs.__or__, (*(stage.needs for stage in self.stages), *finishers), self.allocator_needs)

    def coder(self, layer: int) -> Coder | None:
        """Codes the finished slots of one of its layers; None if they are held as they are."""
        codec = self.policy.codec
        return None if codec is None else Coder(codec.value, codec.text, layer)

    @property
    def scope(self) -> Scope:
        """What its allocator looks at."""
        return scope_of(self.allocator)

    @property
    def waits(self) -> bool:
        """Whether its layers are compressed when the whole forward is over, not right after their own attention."""
        return bool(self.stages) and (self.scope == "model" or bool(self.needs.probes))


@dataclass(frozen=True)
class Compressor:
    """Compresses a model's cache, layer by layer.

    Args:
        composition: how to compress the middle.
        amount: how much of the middle to keep.
        sinks, recent: number of first and last tokens of the prompt that are always kept.
        depth: number of the model's layers; needed where the composition names layers.
    """

    composition: Composition
    amount: Amount
    sinks: int
    recent: int
    depth: int | None = None

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """One per policy."""
        return tuple(map(Rule, self.composition.policies))

    @cached_property
    def _by_layer(self) -> tuple[Rule, ...]:
        by_policy = dict(zip(self.composition.policies, self.rules, strict=True))
        return tuple(by_policy[policy] for policy in self.composition.by_layer(self.depth or 0))

    def rule(self, layer: int) -> Rule:
        """What it does to a layer of the model."""
        if len(self.rules) == 1 and not self.composition.policies[0].layers:
            return self.rules[0]
        if self.depth is None:
            raise ValueError("a composition that names layers needs the model's depth")
        return self._by_layer[layer]

    def pools(self, kv_heads: Mapping[int, int]) -> list[tuple[Rule, dict[int, int]]]:
        """The layers that are compressed, with their numbers of KV heads, policy by policy."""
        found = [(rule, {i: n for i, n in kv_heads.items() if self.rule(i) is rule}) for rule in self.rules]
        return [(rule, layers) for rule, layers in found if rule.stages and layers]

    @property
    def codes(self) -> bool:
        """Whether slots of some layers are coded."""
        return any(rule.policy.codec is not None for rule in self.rules)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of all policies."""
        return tuple(stage for rule in self.rules for stage in rule.stages)

    @cached_property
    def needs(self) -> Needs:
        """Everything its parts need observed."""
        return reduce(Needs.__or__, (rule.needs for rule in self.rules), Needs())

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
            budget: slots for the middle; heads may differ.
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
        self, obs: Observation, budget: Int64[Tensor, "B Hkv"], scores: "Scores | None" = None
    ) -> tuple[KVState, dict[int, Float32[Tensor, "B Hkv K"]]]:
        """:meth:`compress`, and the column sums carried over to the new slots; see ``Arrangement.carried``."""
        plan = self._planned(LayerWork(obs, budget, scores))
        (arranged,) = _arranged([plan])
        return self._finished(arranged.state(obs.state), plan), arranged.carried(obs.state, obs.column_sums)

    def _finished(self, state: KVState, plan: "_LayerPlan") -> KVState:
        rule = self.rule(plan.obs.layer)
        for stage, slots in zip(rule.stages, plan.shares, strict=True):
            state = stage.finish(state, plan.obs.rope, slots > 0)
        for refiner in rule.policy.refiners:
            state = refined(state, plan.obs, refiner, ~plan.whole)
        return state

    def _planned(self, layer: "LayerWork") -> "_LayerPlan":
        """Runs the stages, each on the tokens earlier ones left."""
        obs, rule = layer.obs, self.rule(layer.obs.layer)
        if not rule.stages:
            raise ValueError(f"layer {obs.layer} is not compressed by {self.composition}")
        shares = _stage_budgets(rule, layer.budget)
        known = Scores(obs) if layer.scores is None else layer.scores
        if known.obs is not obs:
            raise ValueError("these scores are of another observation than the one to be compressed")
        known.check_finite()
        count = obs.middle.sum(-1)
        whole = (layer.budget >= count)[..., None]
        eligible, kept = obs.middle & ~whole, obs.state.valid & (obs.protected | whole)
        merged: list[tuple[KVState | Merging, Tensor]] = []
        for stage, slots in zip(rule.stages, shares, strict=True):
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
        return _LayerPlan(obs, shares, kept, tuple(merged), whole[..., 0])


def _stage_budgets(rule: Rule, budget: Int64[Tensor, "B Hkv"]) -> list[Int64[Tensor, "B Hkv"]]:
    """Every head's budget, divided exactly over the stages by their shares."""
    shares = tuple(stage.share for stage in rule.policy.stages)
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
    whole: Bool[Tensor, "B Hkv"]


def _arranged(plans: Sequence[_LayerPlan]) -> list[Arrangement]:
    """Runs all pending merges of the plans."""
    new = iter(merge_together([it for plan in plans for it, _ in plan.merged if isinstance(it, Merging)]))
    merged = [tuple((next(new) if isinstance(it, Merging) else it, taken) for it, taken in p.merged) for p in plans]
    return [Arrangement(plan.kept, pairs) for plan, pairs in zip(plans, merged, strict=True)]


def compressor(
    composition: Composition, amount: Amount, *, sinks: int, recent: int, depth: int | None = None
) -> Compressor:
    """Binds a composition to its options.

    Args:
        composition, amount, sinks, recent, depth: see :class:`Compressor`.

    Raises:
        BudgetError: negative sinks or recent.
        SpecError: the composition's layers are not those of a model with ``depth`` layers.
    """
    check_counts(sinks, recent)
    if depth is not None:
        composition.by_layer(depth)
    return Compressor(composition, amount, sinks, recent, depth)


def check_pools(by: Compressor, kv_heads: Mapping[int, int]) -> None:
    """Checks that a composition compresses at least one of a model's layers.

    Args:
        by: the composition, bound to its options.
        kv_heads: numbers of KV heads of the layers with full attention.

    Raises:
        SpecError: the layers it compresses have sliding windows.
    """
    if not by.pools(kv_heads) and not any(by.rule(layer).policy.codec for layer in kv_heads):
        said = "the layers that this composition compresses have sliding windows, which kvfw leaves as they are"
        raise SpecError(said, str(by.composition), 0)
