"""Which scores decide nothing, because the full cache fails at the task itself."""

from typing import Final

from kvfw.analysis.names import is_full
from kvfw.analysis.results import Results
from kvfw.core.contracts.records import MetricInfo

FLOOR: Final = 0.5
"""A task on which ``full`` scores less leaves compressed rows little to lose."""
PERCENT: Final = "%"
SIGN: Final = "‡"
MEANING: Final = f"full is below {100 * FLOOR:.0f} %: decides nothing"
NOTE: Final = f"{SIGN} {MEANING}"


def below_floor(results: Results) -> frozenset[str]:
    """The names of the shares on which some run's ``full`` has a mean below ``FLOOR``.

    Shares are metrics in percent of which more is better. Without ``full``, or without its mean, nothing is below.
    """
    shares = {info.name for info in results.metrics if _is_share(info)}
    return frozenset(
        name
        for row in results.rows
        if is_full(row.compose)
        for name, summary in row.metrics.items()
        if name in shares and summary.mean is not None and summary.mean < FLOOR
    )


def _is_share(info: MetricInfo) -> bool:
    return info.unit == PERCENT and info.higher_is_better is True
