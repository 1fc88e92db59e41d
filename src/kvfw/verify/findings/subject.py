"""The part under test, and the composition that it is tested in."""

from dataclasses import dataclass
from typing import Any

from kvfw.core.compose.budget import amount
from kvfw.core.compose.build import Built
from kvfw.core.compose.composition import composed
from kvfw.core.compress.compressor import Compressor, Rule, compressor
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry
from kvfw.verify.instruments.observed import RECENT, SINKS

#: How a part that is not a stage by itself becomes one, together with cheap, well-tested parts.
WINDOW_SCORES = "snapkv(window=8)"
TEMPLATES = {
    Kind.SELECTOR: f"select(scorer={WINDOW_SCORES},selector=$part)",
    Kind.MERGER: f"merge(merger=$part,weight={WINDOW_SCORES})",
    Kind.ALLOCATOR: f"{WINDOW_SCORES}@$part",
    Kind.REFINER: f"{WINDOW_SCORES}|$part",
    Kind.CODEC: f"{WINDOW_SCORES}|$part",
    Kind.SPACE: f"merge(merger=ewmeans(iters=2),space=$part,weight={WINDOW_SCORES})",
}


@dataclass(frozen=True)
class Subject:
    """A part under test.

    Args:
        spec: its registered description.
        built: the instance and its canonical text with options; for a model, its entry's target.
        registry: where names are looked up.
    """

    spec: PartSpec
    built: Built[object]
    registry: Registry

    @property
    def part(self) -> Any:
        """The instance. Untyped: whether it has its kind's methods is one of the properties checked."""
        return self.built.value

    @property
    def recipe(self) -> str:
        """A composition's text in which ``$part`` stands for the part."""
        return TEMPLATES.get(self.spec.kind, "$part")

    def bound(self, recipe: str | None = None, ratio: str = "4") -> Compressor:
        """The composition of ``recipe``, by default the part's own, ready to run."""
        asked = composed(recipe or self.recipe, {"part": self.built}, self.registry)
        return compressor(asked, amount(ratio=ratio), sinks=SINKS, recent=RECENT)

    @property
    def rule(self) -> Rule:
        """The one policy of that composition."""
        return self.bound().rules[0]

    @property
    def exact(self) -> bool:
        """Whether its budgets sum to the total."""
        return bool(getattr(self.rule.allocator, "exact", True))
