"""The part under test, and the composition that puts it to work."""

from dataclasses import dataclass
from typing import cast

from kvfw.core.compose.budget import amount
from kvfw.core.compose.build import Built
from kvfw.core.compose.composition import expand
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.parts import Merger, Scorer, Selector, Space
from kvfw.core.contracts.task import Task
from kvfw.core.parts.part import Part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry
from kvfw.verify.instruments.observed import RECENT, SINKS

#: How a part that is no stage by itself becomes one; the other parts in it are cheap and well known.
WINDOW_SCORES = "snapkv(window=8)"
TEMPLATES = {
    Kind.SELECTOR: f"select(scorer={WINDOW_SCORES},selector=$part)",
    Kind.MERGER: f"merge(merger=$part,weight={WINDOW_SCORES})",
    Kind.SPACE: f"merge(merger=ewmeans(iters=2),space=$part,weight={WINDOW_SCORES})",
}


@dataclass(frozen=True)
class Subject:
    """A part under test.

    Args:
        spec: how it was announced.
        built: the instance and its canonical text, options included; for a model what stands behind its name.
        registry: where names are looked up.
    """

    spec: PartSpec
    built: Built[object]
    registry: Registry

    @property
    def part(self) -> object:
        """The instance."""
        return self.built.value

    @property
    def recipe(self) -> str:
        """What a composition says in which the part, ``$part``, does its work."""
        return TEMPLATES.get(self.spec.kind, "$part")

    def bound(self, recipe: str | None = None, ratio: str = "4") -> Compressor:
        """The part's composition, or that of another recipe, ready to run."""
        asked = expand(recipe or self.recipe, {"part": self.built}, self.registry)
        return compressor(asked, amount(ratio=ratio), sinks=SINKS, recent=RECENT)

    @property
    def options(self) -> Part:
        """The part as a bundle of options."""
        return cast(Part, self.part)

    @property
    def scorer(self) -> Scorer:
        """The part as a scorer. These are casts: whether it has the methods is a property of its own."""
        return cast(Scorer, self.part)

    @property
    def selector(self) -> Selector:
        """The part as a selector."""
        return cast(Selector, self.part)

    @property
    def merger(self) -> Merger:
        """The part as a merger."""
        return cast(Merger, self.part)

    @property
    def space(self) -> Space:
        """The part as a space."""
        return cast(Space, self.part)

    @property
    def task(self) -> Task:
        """The part as a task."""
        return cast(Task, self.part)

    @property
    def metric(self) -> Metric | DerivedMetric:
        """The part as a metric."""
        return cast(Metric | DerivedMetric, self.part)
