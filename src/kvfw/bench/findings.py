"""What a benchmark has measured so far."""

from dataclasses import dataclass, field

from kvfw.bench.compression import Cost
from kvfw.bench.decoding import Speed
from kvfw.bench.limits import Bar
from kvfw.bench.peak import Peak
from kvfw.bench.promises import promises
from kvfw.bench.scaling import Growth, growths
from kvfw.bench.startup import Starting
from kvfw.bench.whole_evaluation import Whole


@dataclass(frozen=True)
class Findings:
    """Everything one run measured; empty or None where it has not come to it.

    Attributes:
        hardware: the machine.
        complete: whether the run came to its end.
        costs: compression by composition and length, on the model.
        whole: one evaluation of many compositions.
        speeds: decoding by slots.
        peaks: memory of a prefill by composition (``full``: the model's own).
        starting: how long commands take to answer and the model to load.
        scaling: costs on a random model.
    """

    hardware: dict[str, object]
    complete: bool = False
    costs: tuple[Cost, ...] = ()
    whole: Whole | None = None
    speeds: tuple[Speed, ...] = ()
    peaks: dict[str, Peak] = field(default_factory=dict)
    starting: Starting | None = None
    scaling: tuple[Cost, ...] = ()

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The promises beside what was measured."""
        return promises(self.costs, self.whole, self.peaks, self.starting)

    @property
    def growths(self) -> tuple[Growth, ...]:
        """Exponents of growth on the random model."""
        return growths(self.scaling) if self.scaling else ()
