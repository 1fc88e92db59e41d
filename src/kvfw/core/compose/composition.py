"""Compositions: policies over layers, built once and ready to run, with their canonical text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from kvfw.core.compose.budget import fraction_text
from kvfw.core.compose.build import Built, PartBuilder
from kvfw.core.compose.layers import LayerRange
from kvfw.core.compose.syntax import PolicyNode, StageNode, parse_policies
from kvfw.core.parts.part import Method, StageForm, is_comparable, ranks_tokens
from kvfw.core.parts.spec import BASELINE, Kind
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import RequestError, SpecError

if TYPE_CHECKING:  # they import torch, which is not needed to parse
    from kvfw.core.contracts.codec import Codec
    from kvfw.core.contracts.parts import Allocator, Refiner, Scorer

#: The stage a bare scorer stands for.
SCORER_RECIPE = "select(scorer=$scorer)"


@dataclass(frozen=True)
class StageShare:
    """A stage, and its exact share of the budget, in (0, 1]."""

    stage: StageForm
    share: Fraction


@dataclass(frozen=True)
class Term:
    """One term of a composition: canonical text of a part, and its exact share of the budget, in (0, 1].

    ``parts``: the stages the text stands for, with their shares of the term; several if a recipe is a sum.
    """

    text: str
    share: Fraction
    parts: tuple[StageShare, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text if self.share == 1 else f"{self.text}:{fraction_text(self.share)}"


@dataclass(frozen=True)
class Policy:
    """What is done to some of a model's layers.

    Args:
        layers: the layers; none for all of them.
        terms: the stages, with their shares of the budget; none for ``full``, which leaves the layers as they are.
        allocator_text: canonical text of the allocator; empty for the same number of slots in every layer and head.
        refiner_texts: canonical texts of the refiners, in the order they run.
        codec_text: canonical text of the codec; empty for slots held as they are.
        allocator, refiners, codec: these parts, also where they come from a recipe, and have no text here.
    """

    layers: tuple[LayerRange, ...]
    terms: tuple[Term, ...]
    allocator_text: str = ""
    refiner_texts: tuple[str, ...] = ()
    codec_text: str = ""
    allocator: "Allocator | None" = field(default=None, compare=False, repr=False)
    refiners: tuple["Refiner", ...] = field(default=(), compare=False, repr=False)
    codec: "Built[Codec] | None" = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        layers = f"[{','.join(map(str, self.layers))}]" if self.layers else ""
        stages = "+".join(map(str, self.terms)) or BASELINE
        allocator = f"@{self.allocator_text}" if self.allocator_text else ""
        codec = (self.codec_text,) if self.codec_text else ()
        return layers + stages + allocator + "".join(f"|{text}" for text in (*self.refiner_texts, *codec))

    @property
    def stages(self) -> tuple[StageShare, ...]:
        """All stages in the order they run, with their exact shares of the budget."""
        return tuple(StageShare(part.stage, term.share * part.share) for term in self.terms for part in term.parts)

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum of stages and nothing else, so that it can be a term of a larger sum."""
        return not self.layers and self.allocator is None and not self.refiners and self.codec is None


@dataclass(frozen=True)
class Composition:
    """Policies joined by ``;``, built and ready to run; :func:`parse` makes one.

    ``str()`` gives the canonical text, which parses back to an equal composition; equal texts are equal compositions.
    ``written`` is the text it was parsed from.
    """

    policies: tuple[Policy, ...]
    written: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return ";".join(map(str, self.policies))

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all policies."""
        return tuple(term for policy in self.policies for term in policy.terms)

    @property
    def parts(self) -> tuple[object, ...]:
        """Stages, allocators, refiners and codecs of all policies; they may hold further parts."""
        others = [
            (policy.allocator, *policy.refiners, None if policy.codec is None else policy.codec.value)
            for policy in self.policies
        ]
        return (*(each.stage for each in self.stages), *(part for each in others for part in each if part is not None))

    @property
    def stages(self) -> tuple[StageShare, ...]:
        """The stages of all policies, with their exact shares of their policy's budget."""
        return tuple(stage for policy in self.policies for stage in policy.stages)

    def by_layer(self, depth: int) -> tuple[Policy, ...]:
        """The policy of every layer of a model with ``depth`` layers.

        Raises:
            SpecError: a layer the model does not have, one in two policies or in none, or none that is compressed.
        """
        if len(self.policies) == 1 and not self.policies[0].layers:
            return self.policies * depth
        found: dict[int, Policy] = {}
        for policy in self.policies:
            for part in policy.layers:
                try:
                    layers = part.of(depth)
                except ValueError as error:
                    raise SpecError(str(error), self.written, part.at) from None
                if twice := [layer for layer in layers if layer in found]:
                    raise SpecError(f"layer {twice[0]} is in two policies, or twice in one", self.written, part.at)
                found |= dict.fromkeys(layers, policy)
        if missing := [str(layer) for layer in range(depth) if layer not in found]:
            raise SpecError(
                f"layers {', '.join(missing)} of {depth} are in no policy; add ;[{','.join(missing)}]{BASELINE} to "
                "leave them as they are",
                self.written,
                len(self.written),
            )
        if not any(policy.terms or policy.codec for policy in self.policies):
            raise SpecError(f"every layer is {BASELINE}, so nothing is compressed", self.written, 0)
        return tuple(found[layer] for layer in range(depth))

    def allocated_by(self, allocator: "Allocator") -> "Composition":
        """The same with an allocator made by hand in every policy.

        Raises:
            SpecError: a policy names an allocator itself, or its scores have no unit that this one could compare.
        """
        name = type(allocator).__name__
        for policy in self.policies:
            if policy.allocator is not None:
                raise SpecError(f"{self} names its own allocator; leave out allocator=", self.written, 0)
            if fault := unit_fault(allocator, policy.terms, name):
                raise SpecError(fault, self.written, 0)
        given = [
            replace(each, allocator=allocator, allocator_text=name) if each.terms else each for each in self.policies
        ]
        return replace(self, policies=tuple(given))


def parse(text: str, registry: Registry | None = None) -> Composition:
    """Parses a composition, checks every name and option in it, and builds its parts.

    Args:
        text: such as ``"snapkv:0.8+ewmeans_pre:0.2"``; see :mod:`kvfw.core.compose.syntax`.
        registry: resolves names; the installed parts by default.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    return composed(text, {}, registry or default_registry())


def composed(text: str, options: Mapping[str, Built[Any]], registry: Registry) -> Composition:
    """The composition of a text, with built options in place of each ``$option``; raises as :func:`parse`."""
    builder = PartBuilder(text, registry, options)
    return Composition(tuple(_checked(builder, node) for node in parse_policies(text)), text)


def _checked(builder: PartBuilder, node: PolicyNode) -> Policy:
    """The policy, whose allocator can compare the scores it is to rank by."""
    policy, whole = _policy(builder, node)
    if policy.allocator is not None:
        written, name = node.allocator or node.stages[0].part, policy.allocator_text or whole.allocator_text
        if fault := unit_fault(policy.allocator, policy.terms, name.partition("(")[0]):
            raise builder.fail(fault if node.allocator else f"{written.name} stands for {whole}: {fault}", written.at)
    return policy


def _policy(builder: PartBuilder, node: PolicyNode) -> tuple[Policy, "_FromRecipe"]:
    """The policy, and what of it comes from a recipe."""
    terms, whole = _terms(builder, node.stages)
    refiners, codec = _finishers(builder, node, whole)
    allocator = builder.part(Kind.ALLOCATOR, node.allocator) if node.allocator is not None else None
    if allocator is not None and node.allocator is not None and whole.allocator is not None:
        reason = f"{terms[0].text} divides the budget itself ({whole}); leave out @{allocator.text}"
        raise builder.fail(reason, node.allocator.at)
    policy = Policy(
        node.layers,
        terms,
        allocator.text if allocator is not None else "",
        tuple(each.text for each in refiners),
        codec.text if codec is not None else "",
        allocator.value if allocator is not None else whole.allocator,
        (*whole.refiners, *(each.value for each in refiners)),
        codec if codec is not None else whole.codec,
    )
    return policy, whole


def _finishers(
    builder: PartBuilder, node: PolicyNode, whole: "_FromRecipe"
) -> tuple[list[Built[Any]], Built[Any] | None]:
    """The refiners and the codec, which comes last."""
    refiners: list[Built[Any]] = []
    last = f"{whole} ends in a codec" if whole.codec is not None else ""
    codec: Built[Any] | None = None
    for each in node.finishers:
        if last:
            raise builder.fail(f"{last}, which codes the finished slots, so nothing can follow it", each.at)
        given = builder.given.get(each.name.removeprefix("$"))
        of_hole = given.spec.kind if each.name.startswith("$") and given is not None and given.spec else None
        if of_hole is Kind.CODEC or builder.registry.claimed(Kind.CODEC, each.name):
            codec, last = builder.part(Kind.CODEC, each), f"{each.name} is a codec"
        elif not each.name.startswith("$") and not builder.registry.claimed(Kind.REFINER, each.name):
            raise builder.fail(builder.registry.no_finisher(each.name), each.at)
        elif not node.stages:
            raise builder.fail(f"{BASELINE} keeps every slot as it is, so there is nothing to refine", each.at)
        else:
            refiners.append(builder.part(Kind.REFINER, each))
    return refiners, codec


def unit_fault(allocator: "Allocator", terms: tuple[Term, ...], name: str) -> str | None:
    """Why the allocator cannot compare the scores of heads; None if it can, or does not look at them."""
    if not ranks_tokens(allocator) or not terms:
        return None
    ranking: Scorer | None = getattr(allocator, "by", None) or ranking_of(terms)
    if ranking is None:
        return f"{name} ranks tokens by scores, and this stage has no scorer; name one: by="
    if getattr(allocator, "normalise", "none") == "none" and not is_comparable(ranking):
        return (
            f"{name} compares scores of different heads, and those of {type(ranking).__name__} have no common "
            f"unit; rank by another scorer, such as {name}(by=snapkv)"
            + (f", or use {name}(normalise=zscore)" if hasattr(allocator, "normalise") else "")
        )
    return None


def ranking_of(terms: tuple[Term, ...]) -> "Scorer | None":
    """The scorer that an allocator ranks by unless it names another: that of the first stage; None without one."""
    return terms[0].parts[0].stage.ranking if terms else None


@dataclass(frozen=True)
class _FromRecipe:
    """What the recipe of a policy's only stage brings besides stages; ``str()`` gives the recipe."""

    allocator: "Allocator | None" = None
    allocator_text: str = ""
    refiners: tuple["Refiner", ...] = ()
    codec: "Built[Codec] | None" = None
    recipe: str = ""

    def __str__(self) -> str:
        return self.recipe


def _terms(builder: PartBuilder, nodes: tuple[StageNode, ...]) -> tuple[tuple[Term, ...], _FromRecipe]:
    terms: list[Term] = []
    whole = _FromRecipe()
    for node in nodes:
        if terms and terms[-1].parts[-1].stage.consumes_rest:
            stage = f"stage {terms[-1].text.partition('(')[0]!r}"
            raise builder.fail(f"{stage} merges all that is left, so nothing can follow it; put it last", node.part.at)
        built = builder.part(None, node.part)
        stages, whole = _expanded(built, builder.registry)
        if whole.recipe and len(nodes) > 1:
            reason = f"{built.text} stands for a whole policy ({whole}), so it cannot be a term of a sum"
            raise builder.fail(f"{reason}; write its parts", node.part.at)
        terms.append(Term(built.text, node.share, stages))
    return tuple(terms), whole


def _expanded(built: Built[Any], registry: Registry) -> tuple[tuple[StageShare, ...], _FromRecipe]:
    """The stages a part stands for: itself, those of its recipe, or a scorer with top-k; and the rest of a policy."""
    if isinstance(built.value, StageForm):
        return (StageShare(built.value, Fraction(1)),), _FromRecipe()
    if not isinstance(built.value, Method):
        return _expand(SCORER_RECIPE, {"scorer": built}, registry)
    spec = built.spec
    assert spec is not None
    try:
        return _expand(built.value.recipe, built.options, registry)
    except (SpecError, RecursionError) as error:
        raise RequestError(f"the recipe of method {spec.name!r} ({spec.provider}) does not work: {error}") from error


def _expand(
    recipe: str, options: Mapping[str, Built[Any]], registry: Registry
) -> tuple[tuple[StageShare, ...], _FromRecipe]:
    """:func:`_expanded` for a recipe, with built options in place of each ``$option``; checks no units.

    Raises:
        SpecError: the recipe is wrong, or an option does not fit its place; a caret shows where.
    """
    first, *others = parse_policies(recipe)
    if others or first.layers:
        raise SpecError("a recipe is one policy for all layers; leave out layers", recipe, 0)
    if not first.stages:
        raise SpecError(f"a recipe stands for stages, and {BASELINE} is none", recipe, 0)
    policy, inner = _policy(PartBuilder(recipe, registry, options), first)
    if policy.is_sum:
        return policy.stages, _FromRecipe()
    text = policy.allocator_text or inner.allocator_text
    return policy.stages, _FromRecipe(policy.allocator, text, policy.refiners, policy.codec, recipe)
