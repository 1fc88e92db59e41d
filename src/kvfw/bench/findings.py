"""What a benchmark has measured so far."""

from dataclasses import dataclass, field

from kvfw.bench.compression import Cost
from kvfw.bench.decoding import Speed, Steps
from kvfw.bench.held import Held
from kvfw.bench.limits import Bar
from kvfw.bench.peak import Peak
from kvfw.bench.promises import promises
from kvfw.bench.scaling import Growth, growths
from kvfw.bench.startup import Starting
from kvfw.bench.whole_evaluation import Whole


@dataclass(frozen=True)
class Findings:
    """Everything a run has measured so far; empty or None before it is measured.

    Attributes:
        hardware: the machine.
        complete: whether the run is finished.
        costs: of compression, by composition and length, on the model.
        whole: time of one evaluation of many compositions.
        speeds: decode speed by number of slots.
        steps: time of a decode step, relative to other caches of as many slots.
        refit: what a refit costs, in prefills.
        held: bytes that caches hold, of what their slots are worth.
        peaks: peak memory of a prefill, by composition (``full``: the model's own).
        starting: time commands take to answer and the model to load.
        scaling: costs on a small random model.
    """

    hardware: dict[str, object]
    complete: bool = False
    costs: tuple[Cost, ...] = ()
    whole: Whole | None = None
    speeds: tuple[Speed, ...] = ()
    steps: Steps | None = None
    refit: float | None = None
    held: tuple[Held, ...] = ()
    peaks: dict[str, Peak] = field(default_factory=dict)
    starting: Starting | None = None
    scaling: tuple[Cost, ...] = ()

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Each promise with its measurement."""
        return promises(self.costs, self.whole, self.steps, self.peaks, self.starting, self.refit, self.held)

    @property
    def growths(self) -> tuple[Growth, ...]:
        """Exponents of growth on the random model."""
        return growths(self.scaling) if self.scaling else ()
