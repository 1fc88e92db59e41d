"""Means, errors and intervals of trial values. Every statistic is a number, or the reason why there is none.

Sources: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), for
proportions; Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13 for percentile intervals,
chapter 15 for a test that inverts the interval; Davison and Hinkley, "Bootstrap Methods and their Application" (1997),
section 3.2, for resampling within strata.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from scipy import stats

from kvfw.core.contracts.records import Frozen, stratum_of

FEW_GROUPS = 10
"""Below this many groups a bootstrap interval is marked as rough."""
LARGEST = 1e150
TOO_LARGE = "the values are too large for arithmetic"

Interval = tuple[float, float]
ValuesByGroup = Mapping[str, Sequence[float]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Estimate(Generic[T]):
    """A value, or the reason why there is none: exactly one of the two is None."""

    value: T | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an estimate has either a value or a reason")


class Summary(Frozen):
    """One metric of one row.

    Attributes:
        mean: over all trials that have a value.
        se: standard error over groups, see :func:`group_se`.
        ci95: 95 % interval of the mean, by ``ci95_method``. Wilson's assumes independent trials.
        n: trials with a value.
        groups: groups with a value, see :class:`~kvfw.core.contracts.task.Sample`.
        few_groups: the interval is a bootstrap from fewer than 10 groups.
        missing: number of trials without a value, by reason.
        reasons: why, for exactly those of ``mean``, ``se``, ``ci95`` that are None.
    """

    mean: float | None
    se: float | None
    ci95: tuple[float, float] | None
    ci95_method: Literal["wilson", "bootstrap"]
    n: int = Field(ge=0)
    groups: int = Field(ge=0)
    few_groups: bool
    missing: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nulls_have_reasons(self) -> "Summary":
        nulls = {name for name in ("mean", "se", "ci95") if getattr(self, name) is None}
        if nulls != self.reasons.keys():
            raise ValueError(f"null: {sorted(nulls)}, but reasons for: {sorted(self.reasons)}")
        return self


def mean(values: Sequence[float]) -> Estimate[float]:
    """The arithmetic mean, independent of the order of the values."""
    if not values:
        return Estimate(None, "no trial has a value")
    try:
        return _finite(statistics.fmean(values))
    except OverflowError:
        return Estimate(None, TOO_LARGE)


def wilson(hits: int, n: int) -> Estimate[Interval]:
    """95 % interval of a proportion after Wilson (1927), without continuity correction, as fractions of 1.

    It assumes independent trials, so it is too narrow if trials share a text. Raises ValueError unless 0 <= hits <= n.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n} trials")
    if n == 0:
        return Estimate(None, "no trial has a value")
    interval = stats.binomtest(hits, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Estimate((float(interval.low), float(interval.high)))


def group_se(values_by_group: ValuesByGroup) -> Estimate[float]:
    """Standard error over groups: sd(group means, ddof=1) / sqrt(groups). Groups without values do not count."""
    means = [mean(values).value for _, values in _filled(values_by_group)]
    if len(means) < 2:
        return Estimate(None, f"a standard error needs two groups or more, there {'is 1' if means else 'are 0'}")
    finite = [value for value in means if value is not None]
    if len(finite) < len(means):
        return Estimate(None, TOO_LARGE)
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite(float(stats.sem(finite, ddof=1)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A bootstrapped mean: its 95 % percentile interval, and the two-sided p value of "the mean is 0"."""

    ci95: Interval
    p_zero: float


def cluster_bootstrap(values_by_group: ValuesByGroup, *, resamples: int = 9999, seed: int = 0) -> Estimate[Drawn]:
    """Interval and test of the mean over trials, resampling whole groups within each stratum.

    Trials of one group share a text, so they are drawn together; strata are fixed by design, so groups are never
    exchanged between them. The same input gives the same result.

    The p value inverts the percentile interval: if L of B resampled means are at most 0 and G at least 0,
    ``p = min(1, 2 (min(L, G) + 1) / (B + 1))``. Adding 1 keeps it above 0, which no finite number of samples can show.

    Args:
        values_by_group: trial values of each group.
        resamples: number of bootstrap samples.
        seed: of the random generator.
    """
    strata: dict[str, list[Sequence[float]]] = defaultdict(list)
    for group, values in _filled(values_by_group):
        strata[stratum_of(group)].append(values)
    if not strata:
        return Estimate(None, "no trial has a value")
    if single := [stratum for stratum, groups in strata.items() if len(groups) < 2]:
        where = f" in every stratum, there is 1 in {', '.join(single)}" if single[0] else ", there is 1"
        return Estimate(None, f"resampling needs two groups or more{where}")
    every = [value for groups in strata.values() for values in groups for value in values]
    # scipy squares the resampled means; larger ones would overflow to NaN.
    if max(map(abs, every)) > LARGEST:
        return Estimate(None, TOO_LARGE)
    sums = [np.array([math.fsum(values) for values in groups]) for groups in strata.values()]
    counts = [np.array([len(values) for values in groups]) for groups in strata.values()]

    def pooled_mean(*drawn: npt.NDArray[np.int64], axis: int) -> npt.NDArray[np.float64]:
        total = np.sum([s[d.astype(np.intp)].sum(axis) for s, d in zip(sums, drawn, strict=True)], axis=0)
        count = np.sum([c[d.astype(np.intp)].sum(axis) for c, d in zip(counts, drawn, strict=True)], axis=0)
        ratio: npt.NDArray[np.float64] = total / count
        return ratio

    drawn = stats.bootstrap(
        tuple(np.arange(len(groups)) for groups in strata.values()),
        pooled_mean,
        n_resamples=resamples,
        confidence_level=0.95,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    low, high = float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
    means: npt.NDArray[np.float64] = np.asarray(drawn.bootstrap_distribution)
    least = min(int(np.count_nonzero(means <= 0)), int(np.count_nonzero(means >= 0)))
    # Only rounding can take a mean outside the range of its values.
    interval = (max(low, min(every)), min(high, max(every)))
    return Estimate(Drawn(interval, min(1.0, 2 * (least + 1) / (means.size + 1))))


def cluster_bootstrap_ci(values_by_group: ValuesByGroup, *, resamples: int = 9999, seed: int = 0) -> Estimate[Interval]:
    """The interval of :func:`cluster_bootstrap` alone."""
    drawn = cluster_bootstrap(values_by_group, resamples=resamples, seed=seed)
    return Estimate(None, drawn.reason) if drawn.value is None else Estimate(drawn.value.ci95)


def summarise_values(
    values_by_group: ValuesByGroup, *, proportion: bool, missing: Mapping[str, int] | None = None, resamples: int = 9999
) -> Summary:
    """The summary of one metric of one row.

    Args:
        values_by_group: trial values of each group; a group may be empty.
        proportion: values are hits (1) and misses (0), so the interval is Wilson's.
        missing: number of trials without a value, by reason.
        resamples: number of bootstrap samples.
    """
    filled = dict(_filled(values_by_group))
    values = [value for group in filled.values() for value in group]
    average, error = mean(values), group_se(filled)
    interval = _hit_interval(values) if proportion else cluster_bootstrap_ci(filled, resamples=resamples)
    reasons = {"mean": average.reason, "se": error.reason, "ci95": interval.reason}
    return Summary(
        mean=average.value,
        se=error.value,
        ci95=interval.value,
        ci95_method="wilson" if proportion else "bootstrap",
        n=len(values),
        groups=len(filled),
        few_groups=not proportion and len(filled) < FEW_GROUPS,
        missing=dict(sorted((missing or {}).items())),
        reasons={name: reason for name, reason in reasons.items() if reason is not None},
    )


def _hit_interval(values: Sequence[float]) -> Estimate[Interval]:
    if any(value not in (0.0, 1.0) for value in values):
        return Estimate(None, "some trials are neither hit nor miss, so no binomial interval applies")
    return wilson(sum(value == 1.0 for value in values), len(values))


def _filled(values_by_group: ValuesByGroup) -> list[tuple[str, Sequence[float]]]:
    """Groups with values, both sorted, so that sums do not depend on the order of arrival."""
    order = sorted(values_by_group, key=natural)
    return [(group, sorted(values_by_group[group])) for group in order if values_by_group[group]]


def natural(group: str) -> list[tuple[bool, int, str]]:
    """Sort key of groups, part by part with numbers by value: ``"512/2"``, ``"512/10"``, ``"1024/0"``."""
    parts = group.split("/")
    return [(False, int(part), "") if part.isdecimal() and part.isascii() else (True, 0, part) for part in parts]


def _finite(value: float) -> Estimate[float]:
    return Estimate(value) if math.isfinite(value) else Estimate(None, TOO_LARGE)
