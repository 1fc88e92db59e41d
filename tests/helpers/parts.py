"""Parts of a stranger: odd options, and parts that break their contract."""

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field, SkipValidation
from torch import Tensor

from kvfw.core.compose.build import part_class
from kvfw.core.compose.composition import Composition, Policy, StageShare, Term, parse
from kvfw.core.contracts.parts import Scorer
from kvfw.core.parts.part import Method, Part, PartOption, StageForm, part_option
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, register
from kvfw.core.state.observation import Needs, Observation
from kvfw.core.state.state import KVState
from kvfw.methods import kvfw_parts


class Plain(Part):
    """A scorer that needs nothing; its base class for the others."""

    @property
    def needs(self) -> Needs:
        return Needs()

    def score(self, obs: Observation) -> Tensor:
        return torch.zeros_like(obs.state.mass)


class Options(Plain):
    """Has every kind of plain option."""

    strength: float = 10
    flag: bool = False
    norm: Literal["none", "count"] = "count"
    local: int | None = Field(None, ge=1)


class Required(Plain):
    """Cannot be without its option."""

    steps: int


class Nested(Method):
    """Has a part as an option whose default has options of its own."""

    by: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=5)")]
    recipe: ClassVar[str] = "select(scorer=$by)"


class Halves(Method):
    """A sum whose shares have no decimal, of a part that is its option and of one that holds it."""

    by: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=5)")]
    recipe: ClassVar[str] = "$by:1/3+select(scorer=$by,selector=evenly):2/3"


class Tailed(Method):
    """A sum that ends in a merging stage, with a sum inside."""

    by: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=5)")]
    iters: int = 3
    block: int | None = None
    recipe: ClassVar[str] = (
        "halves(by=$by):0.6+merge(merger=ewmeans(iters=$iters,block=$block),weight=$by,bias=log):0.4"
    )


class TailInFront(Method):
    """A sum in which a stage follows a merging one."""

    recipe: ClassVar[str] = "tailed:0.5+uniform:0.5"


class Circle(Method):
    """Its recipe names itself."""

    recipe: ClassVar[str] = "circle"


class Lists(Plain):
    """Has options that are lists."""

    counts: tuple[int, ...] = ()
    at: tuple[float, ...] = Field((10, 50.5), min_length=1)
    words: tuple[str, ...] = ("vt",)
    some: tuple[int, ...] | None = None


class Several(Plain):
    """Holds a list of parts."""

    of: Annotated[tuple[Scorer, ...], SkipValidation, PartOption(Kind.SCORER, "[snapkv,position]")]


class Listing(Method):
    """Hands lists on to parts that take lists."""

    of: Annotated[tuple[Scorer, ...], SkipValidation, PartOption(Kind.SCORER, "[snapkv,position]")]
    counts: tuple[int, ...] = (3, 4)
    recipe: ClassVar[str] = "several(of=$of):0.5+lists(counts=$counts,at=[2,2.5]):0.5"


class Whole(Method):
    """A policy: a scorer, an allocator and a refiner."""

    by: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=5)")]
    floor: float = 0.5
    recipe: ClassVar[str] = "$by@adakv(floor=$floor)|refit"


class Thin(Method):
    """A policy that ends in a codec."""

    by: Annotated[Scorer, SkipValidation, PartOption(Kind.SCORER, "snapkv(window=5)")]
    bits: int = 2
    recipe: ClassVar[str] = "$by|kivi(bits=$bits)"


class FullRecipe(Method):
    """Stands for no stage."""

    recipe: ClassVar[str] = "full|kivi"


class Again(Method):
    """Another name for a policy."""

    recipe: ClassVar[str] = "whole(floor=0.25)"


class MixesPolicies(Method):
    """A sum with a policy in it."""

    recipe: ClassVar[str] = "halves:0.5+whole:0.5"


class NamesLayers(Method):
    """Not for all layers."""

    recipe: ClassVar[str] = "[0-1]snapkv"


class BrokenRecipe(Method):
    """Its recipe asks for an option that it does not have."""

    recipe: ClassVar[str] = "select(scorer=$by)"


class Raising(Plain):
    """Must never be called."""

    def score(self, obs: Observation) -> Tensor:
        raise AssertionError("the scorer was called")


class NaN(Plain):
    """Gives one NaN, to a token of the middle."""

    def score(self, obs: Observation) -> Tensor:
        scores = torch.zeros_like(obs.state.mass)
        scores[0, 0, int(obs.middle[0, 0].nonzero()[-1])] = torch.nan
        return scores


class HarmlessNaN(Plain):
    """Gives NaN to everything that it has no say about."""

    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions.masked_fill(~obs.middle, torch.nan)


class Flat(Plain):
    """Forgets the heads."""

    def score(self, obs: Observation) -> Tensor:
        return obs.state.mass[:, 0]


class Negative(Plain):
    """Scores that can rank but not weight."""

    def score(self, obs: Observation) -> Tensor:
        return -1 - obs.state.positions


class Endless(Plain):
    """Infinite scores for protected and empty slots."""

    def score(self, obs: Observation) -> Tensor:
        return obs.state.positions.masked_fill(~obs.middle, torch.inf)


class Undeclared(Plain):
    """Looks at queries that it did not ask for."""

    def score(self, obs: Observation) -> Tensor:
        obs.window()
        return torch.zeros_like(obs.state.mass)


class Spy(Plain):
    """Shows how many queries it was given, as its score."""

    queries: int = 0

    @property
    def needs(self) -> Needs:
        return Needs(queries=self.queries)

    def score(self, obs: Observation) -> Tensor:
        seen = 0 if obs.queries is None else obs.queries.shape[2]
        return torch.full_like(obs.state.mass, float(seen))


class Greedy(Part):
    """Keeps all that is eligible."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible


class Trespassing(Part):
    """Keeps the first slots, whatever they are."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return torch.arange(eligible.shape[-1]) < budget[..., None]


class Narrow(Part):
    """Returns a mask that is one slot short."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible[..., 1:]


class Indexing(Part):
    """Returns numbers in place of a mask."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        return eligible.to(torch.int64)


class RaisingSelector(Part):
    """Must never be called."""

    def select(self, scores: Tensor, budget: Tensor, eligible: Tensor, obs: Observation) -> Tensor:
        raise AssertionError("the selector was called")


class RaisingMerger(Part):
    """Must never be called."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        raise AssertionError("the merger was called")


class Idle(Part):
    """Merges nothing."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        return state


class Dropping(Part):
    """Keeps the last slots and forgets the mass of the others."""

    def merge(self, state: KVState, weights: Tensor, budget: Tensor) -> KVState:
        kept = torch.arange(state.width) >= state.width - budget[..., None]
        return replace(
            state,
            positions=state.positions.masked_fill(~kept, -1.0),
            mass=state.mass.masked_fill(~kept, 0.0),
            bias=state.bias.masked_fill(~kept, -torch.inf),
        )


def _spec(kind: Kind, name: str, cls: type[Part]) -> PartSpec:
    return PartSpec(kind, name, f"{__name__}:{cls.__name__}", "for a test", provider="stranger")


STRANGERS = (
    _spec(Kind.SCORER, "options", Options),
    _spec(Kind.SCORER, "required", Required),
    _spec(Kind.METHOD, "nested", Nested),
    _spec(Kind.METHOD, "halves", Halves),
    _spec(Kind.METHOD, "tailed", Tailed),
    _spec(Kind.METHOD, "tail_in_front", TailInFront),
    _spec(Kind.METHOD, "circle", Circle),
    _spec(Kind.METHOD, "whole", Whole),
    _spec(Kind.METHOD, "again", Again),
    _spec(Kind.METHOD, "thin", Thin),
    _spec(Kind.METHOD, "full_recipe", FullRecipe),
    _spec(Kind.METHOD, "mixes_policies", MixesPolicies),
    _spec(Kind.METHOD, "names_layers", NamesLayers),
    _spec(Kind.SCORER, "lists", Lists),
    _spec(Kind.SCORER, "several", Several),
    _spec(Kind.METHOD, "listing", Listing),
    _spec(Kind.METHOD, "broken_recipe", BrokenRecipe),
    _spec(Kind.SCORER, "raising", Raising),
    _spec(Kind.SCORER, "nan", NaN),
    _spec(Kind.SCORER, "harmless_nan", HarmlessNaN),
    _spec(Kind.SCORER, "flat", Flat),
    _spec(Kind.SCORER, "negative", Negative),
    _spec(Kind.SCORER, "endless", Endless),
    _spec(Kind.SCORER, "undeclared", Undeclared),
    _spec(Kind.SCORER, "spy", Spy),
    _spec(Kind.SELECTOR, "greedy", Greedy),
    _spec(Kind.SELECTOR, "trespassing", Trespassing),
    _spec(Kind.SELECTOR, "narrow", Narrow),
    _spec(Kind.SELECTOR, "indexing", Indexing),
    _spec(Kind.SELECTOR, "raising_selector", RaisingSelector),
    _spec(Kind.MERGER, "raising_merger", RaisingMerger),
    _spec(Kind.MERGER, "idle", Idle),
    _spec(Kind.MERGER, "dropping", Dropping),
    PartSpec(Kind.SCORER, "absent", "helpers.nowhere:Absent", "for a test", provider="stranger"),
    PartSpec(Kind.SCORER, "unnamed", f"{__name__}:Absent", "for a test", provider="stranger"),
    PartSpec(Kind.SCORER, "no_part", f"{__name__}:STRANGERS", "for a test", provider="stranger"),
)


def stage_of(text: str, registry: Registry | None = None) -> StageForm:
    """The one stage that a text stands for."""
    (found,) = parse(text, registry).stages
    return found.stage


def one_stage(spec: PartSpec) -> bool:
    """Whether the name alone stands for one stage: not for a sum or a policy, and no option without a default."""
    cls = part_class(spec)
    whole = set("@|+") & set(getattr(cls, "recipe", ""))
    marks = {name: part_option(info) for name, info in cls.model_fields.items()}
    missing = [name for name, info in cls.model_fields.items() if info.is_required() and not marks[name]]
    return not whole and not missing


def by_hand(*stages: object) -> Composition:
    """A composition of stages that have no names, in equal shares."""
    share, whole = Fraction(1, len(stages)), Fraction(1)
    made = [StageShare(cast(StageForm, stage), whole) for stage in stages]
    return Composition((Policy((), tuple(Term(f"by_hand_{i}", share, (each,)) for i, each in enumerate(made))),))


def strange_registry() -> Registry:
    """kvfw's own parts and all the strangers above."""
    return register((*kvfw_parts(), *STRANGERS))
