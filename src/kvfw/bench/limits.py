"""The speed and memory that kvfw promises."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A promise and its measurement.

    Attributes:
        what: the quantity.
        limit: the most it may be.
        measured: its value; None if it was not measured.
        unit: of both; ``""`` for a fraction.
    """

    what: str
    limit: float
    measured: float | None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None if nothing was measured."""
        return None if self.measured is None else self.measured <= self.limit


#: The most that compression may cost, as a fraction of the prompt's prefill, at 3072 tokens.
COMPRESSION_BARS = {
    "snapkv": 0.03,
    "snapkv:0.8+ewmeans_pre:0.2": 0.10,
    "ewmeans_pre": 0.40,
    "ewmeans_pre(block=256)": 0.10,
    "h2o": 0.40,
    "snapkv@adakv": 0.04,
    "kvzip@global": 0.05,
    "expected": 0.10,
}
#: The most that a probe which repeats the prompt may take, in prefills.
PROBE_BAR = 2.3
BAR_TOKENS = 3072
SINKS, RECENT, RATIO = 4, 84, 4
#: Memory is measured at a high ratio, where there is most to save.
MEMORY_RATIO = 8
WHOLE_BAR = 0.25
#: The compositions of the whole evaluation that ``WHOLE_BAR`` limits.
SIXTEEN = (
    "uniform",
    "streaming",
    "streaming(positions=cache)",
    "h2o",
    "h2o(norm=none)",
    "h2o(local=32)",
    "snapkv",
    "snapkv(window=32)",
    "snapkv(window=64,kernel=5,pool=max)",
    "pinned",
    "ewmeans_post(block=256)",
    "ewmeans_pre(block=256)",
    "pinned:0.65+ewmeans_post:0.35",
    "snapkv:0.8+ewmeans_pre:0.2",
    "h2o:0.8+ewmeans_pre:0.2",
    "snapkv:0.5+streaming:0.5",
)
H2O_BYTES = 64 * 2**20
#: The most that a decode step may take: over heads of unequal size, of one over as many slots in equal heads; over
#: kvfw's cache, of one over transformers' own with as many slots.
UNEVEN_BAR, OWN_BAR = 1.15, 1.0
#: The most that a refit may cost, in prefills, at the ratio of the memory measurements.
REFIT_BAR = 1.0
#: The most that caches may hold, of slots x bytes per slot: heads of unequal size; coded in 4 bits, of float16 slots.
RAGGED_BAR, CODED_BAR = 1.02, 0.32
#: Extra memory of a probe, besides what a forward over as many tokens takes.
PROBE_BYTES = 64 * 2**20
#: Peaks compared for it. A probe repeats the prompt in pieces of up to 2048 tokens.
PROBED, PROBED_LIKE = "kvzip@global", "full, 2048 tokens at a time"
HELP_S, LIST_S, LOAD_S = 0.5, 0.5, 3.0
