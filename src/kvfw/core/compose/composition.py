"""Compositions: terms joined by ``+``, built once and ready to run, with their canonical text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kvfw.core.compose.budget import fraction_text
from kvfw.core.compose.build import Built, PartBuilder
from kvfw.core.compose.syntax import parse_stages
from kvfw.core.parts.part import Method, StageForm
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import RequestError, SpecError

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
class Composition:
    """Terms joined by ``+``, built and ready to run; :func:`parse` makes one.

    ``str()`` gives the canonical text, which parses back to an equal composition; equal texts are equal compositions.
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.terms))

    @property
    def stages(self) -> tuple[StageShare, ...]:
        """All stages in the order they run, with their exact shares of the whole budget."""
        return tuple(StageShare(part.stage, term.share * part.share) for term in self.terms for part in term.parts)


def parse(text: str, registry: Registry | None = None) -> Composition:
    """Parses a composition, checks every name and option in it, and builds its parts.

    Args:
        text: such as ``"snapkv:0.8+ewmeans_pre:0.2"``; see :mod:`kvfw.core.compose.syntax`.
        registry: resolves names; the installed parts by default.

    Raises:
        SpecError: the text is wrong; a caret shows where.
    """
    return expand(text, {}, registry or default_registry())


def expand(recipe: str, options: Mapping[str, Built[Any]], registry: Registry) -> Composition:
    """The composition a recipe describes, with built options in place of each ``$option``.

    Raises:
        SpecError: the recipe is wrong, or an option does not fit its place; a caret shows where.
    """
    builder = PartBuilder(recipe, registry, options)
    terms: list[Term] = []
    for node in parse_stages(recipe):
        if terms and terms[-1].parts[-1].stage.consumes_rest:
            stage = f"stage {terms[-1].text.partition('(')[0]!r}"
            raise builder.fail(f"{stage} merges all that is left, so nothing can follow it; put it last", node.part.at)
        built = builder.part(None, node.part)
        terms.append(Term(built.text, node.share, _expanded(built, registry)))
    return Composition(tuple(terms))


def _expanded(built: Built[Any], registry: Registry) -> tuple[StageShare, ...]:
    """The stages a part stands for: itself, those of its recipe, or a scorer with top-k."""
    if isinstance(built.value, StageForm):
        return (StageShare(built.value, Fraction(1)),)
    if not isinstance(built.value, Method):
        return expand(SCORER_RECIPE, {"scorer": built}, registry).stages
    spec = built.spec
    assert spec is not None
    try:
        return expand(built.value.recipe, built.options, registry).stages
    except (SpecError, RecursionError) as error:
        raise RequestError(f"the recipe of method {spec.name!r} ({spec.provider}) does not work: {error}") from error
