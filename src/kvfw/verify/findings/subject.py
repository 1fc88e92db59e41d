"""The part under test, and the composition that puts it to work."""

from dataclasses import dataclass
from typing import cast

from kvfw.core.compose.budget import amount
from kvfw.core.compose.composition import parse
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
    Kind.SELECTOR: f"select(scorer={WINDOW_SCORES},selector={{}})",
    Kind.MERGER: f"merge(merger={{}},weight={WINDOW_SCORES})",
    Kind.SPACE: f"merge(merger=ewmeans(iters=2),space={{}},weight={WINDOW_SCORES})",
}


@dataclass(frozen=True)
class Subject:
    """A part under test.

    Args:
        spec: how it was announced.
        text: its canonical text, options included.
        part: the instance; for a model what stands behind its name.
        registry: where names are looked up.
    """

    spec: PartSpec
    text: str
    part: object
    registry: Registry

    @property
    def compose(self) -> str:
        """Composition text in which the part does its work."""
        return TEMPLATES.get(self.spec.kind, "{}").format(self.text)

    def bound(self, compose: str | None = None, ratio: str = "4") -> Compressor:
        """The part's composition, or another one, ready to run."""
        return compressor(
            parse(compose or self.compose, self.registry),
            amount(ratio=ratio),
            sinks=SINKS,
            recent=RECENT,
            registry=self.registry,
        )

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
