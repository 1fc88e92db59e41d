"""Paired comparisons of rows: the same prompts answered twice, so that the difficulty of a prompt cancels out.

A metric of hits and misses is tested by McNemar's exact test on the discordant pairs (McNemar, "Note on the sampling
error of the difference between correlated proportions or percentages", Psychometrika 12, 1947): if the rows do not
differ, each of the ``gained + lost`` prompts that only one of them answers is as likely on one side as on the other.
The test assumes independent trials. Every other metric is tested by a bootstrap of the mean paired difference, which
draws groups within their stratum (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13 and 15).
Perplexities enter as their logarithm, the negative log-likelihood per token.

P values are adjusted after Holm ("A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6, 1979). A family is one column of the table: all rows on one metric against one reference. There is no
adjustment across metrics or references; comparisons without a p value do not count towards the family's size.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import Field, model_validator
from scipy.stats import binomtest
from statsmodels.stats.multitest import multipletests

from kvfw.analysis import stats
from kvfw.analysis.names import is_full, method_of
from kvfw.analysis.stats import FEW_GROUPS, Estimate
from kvfw.core.contracts.records import Frozen, MetricInfo, PromptKey, RowKey, TrialRecord

ALPHA: Final = 0.05
LOGARITHMIC: Final = frozenset({"ref_ppl", "self_ppl"})
"""Exponentials of a mean negative log-likelihood; compared by their logarithm, in nats per token."""
FEWEST_SIGNS: Final = 6
"""Six of six on one side give p < .05 two-sided (2 / 2^6 = .031); five of five only .0625."""

Verdict = Literal["higher", "lower", "no difference shown", "cannot decide"]
Test = Literal["mcnemar", "bootstrap"]


class RowName(Frozen):
    """One row of the table."""

    compose: str
    amount: str


class Comparison(Frozen):
    """One row against a reference row on one metric.

    Attributes:
        metric: name of the metric.
        row, reference: the rows compared.
        test: ``"mcnemar"``: exact, assumes independent trials; ``"bootstrap"``: resamples groups.
        scale: ``"plain"``: the metric's own unit (a fraction for percentages); ``"log"``: nats per token.
        pairs: number of prompts for which both rows have a value.
        groups: number of groups among them.
        difference: mean of row minus reference over the pairs, on ``scale``.
        ci95: 95 % bootstrap interval of the difference, groups drawn within their stratum; for every metric.
        gained, lost: pairs where only the row, only the reference is a hit; None if the metric is not one of hits.
        p: two-sided.
        p_holm: adjusted over ``family`` tests: the same metric and reference, every row that has a p.
        verdict: ``"higher"`` or ``"lower"`` if ``p_holm`` < .05; ``"cannot decide"`` without a p, or with fewer than 6
            discordant pairs (McNemar) or groups (bootstrap), which can never reach p < .05.
        few_groups: ``ci95``, and ``p`` if by bootstrap, rest on fewer than 10 groups.
        reasons: why, for exactly those of ``difference``, ``ci95``, ``p``, ``p_holm`` that are None.
    """

    metric: str
    row: RowName
    reference: RowName
    test: Test
    scale: Literal["plain", "log"]
    pairs: int = Field(ge=0)
    groups: int = Field(ge=0)
    difference: float | None
    ci95: tuple[float, float] | None
    gained: int | None
    lost: int | None
    p: float | None = Field(ge=0, le=1)
    p_holm: float | None = Field(ge=0, le=1)
    family: int = Field(ge=0)
    verdict: Verdict
    few_groups: bool
    reasons: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nulls_have_reasons(self) -> "Comparison":
        nulls = {name for name in ("difference", "ci95", "p", "p_holm") if getattr(self, name) is None}
        if nulls != self.reasons.keys():
            raise ValueError(f"null: {sorted(nulls)}, but reasons for: {sorted(self.reasons)}")
        return self


class Pair(NamedTuple):
    """Both rows' values for one prompt, and its group."""

    row: float
    reference: float
    group: str


Signs = tuple[int, int]
"""Numbers of discordant pairs: prompts that only the row, only the reference answers."""


def compare_rows(
    rows: Sequence[RowKey],
    records: Iterable[TrialRecord],
    metrics: Sequence[MetricInfo],
    references: Sequence[RowKey] | None = None,
    *,
    resamples: int = 9999,
) -> tuple[Comparison, ...]:
    """Compares every row with every reference on every metric, in the order reference, metric, row.

    A reference stands for its composition: a row is compared with the reference at the row's own amount if that was
    run, else with the reference as named. No row is compared with itself, no pair twice.

    Args:
        rows: of the table, in its order.
        records: the trials of those rows.
        metrics: those of the table.
        references: None for :func:`default_references`.
        resamples: number of bootstrap samples.

    Raises:
        ValueError: a reference is no row.
    """
    wanted = default_references(rows) if references is None else tuple(dict.fromkeys(references))
    if unknown := [reference for reference in wanted if reference not in rows]:
        raise ValueError(f"no such row: {' '.join(unknown[0])}")
    by_row: dict[RowKey, dict[PromptKey, TrialRecord]] = defaultdict(dict)
    for record in records:
        by_row[record.key.row][record.key.prompt] = record
    matches = _matches(rows, wanted)
    return tuple(
        comparison
        for reference in wanted
        for info in metrics
        for comparison in _adjusted(
            [
                compare(info, row, against, _pairs(info, by_row[row], by_row[against]), resamples=resamples)
                for row, against in matches[reference]
            ]
        )
    )


def default_references(rows: Sequence[RowKey]) -> tuple[RowKey, ...]:
    """The uncompressed baseline and the first composition, if present."""
    full = next((row for row in rows if is_full(row.compose)), None)
    first = next((row for row in rows if not is_full(row.compose)), None)
    return tuple(row for row in (full, first) if row is not None)


def compare(
    info: MetricInfo, row: RowKey, reference: RowKey, pairs: Sequence[Pair], *, resamples: int = 9999
) -> Comparison:
    """Compares two rows on one metric, as a family of one test."""
    logarithmic = info.name in LOGARITHMIC
    differences = _differences(pairs, logarithmic)
    by_group = differences.value or {}
    difference = stats.mean([value for values in by_group.values() for value in values])
    drawn = stats.cluster_bootstrap(by_group, resamples=resamples)
    signs = _signs(pairs) if info.proportion else None
    test: Test = "mcnemar" if info.proportion else "bootstrap"
    if info.proportion:
        p = _mcnemar(signs, len(pairs))
        enough = signs is not None and sum(signs) >= FEWEST_SIGNS
    else:
        p = Estimate(None, drawn.reason) if drawn.value is None else Estimate(drawn.value.p_zero)
        enough = len(by_group) >= FEWEST_SIGNS
    nothing = differences.reason or (None if pairs else "the two rows have no prompt with a value in both")
    reasons = {
        "difference": difference.reason and (nothing or difference.reason),
        "ci95": drawn.reason and (nothing or drawn.reason),
        "p": p.reason and (nothing or p.reason),
        "p_holm": p.reason and (nothing or p.reason),
    }
    return Comparison(
        metric=info.name,
        row=RowName(compose=row.compose, amount=row.amount),
        reference=RowName(compose=reference.compose, amount=reference.amount),
        test=test,
        scale="log" if logarithmic else "plain",
        pairs=len(pairs),
        groups=len(by_group),
        difference=difference.value,
        ci95=None if drawn.value is None else drawn.value.ci95,
        gained=None if signs is None else signs[0],
        lost=None if signs is None else signs[1],
        p=p.value,
        p_holm=p.value,
        family=int(p.value is not None),
        verdict=_verdict(p.value, difference.value, enough),
        few_groups=len(by_group) < FEW_GROUPS,
        reasons={name: reason for name, reason in reasons.items() if reason is not None},
    )


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p of the discordant pairs, 1 if there are none. Raises ValueError for a negative number."""
    if min(gained, lost) < 0:
        raise ValueError(f"{gained} and {lost} discordant pairs")
    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p values adjusted after Holm (1979), in the same order."""
    if len(p_values) < 2:
        # Nothing to adjust, and multipletests collects garbage on every call: a third of a second with torch loaded.
        return tuple(p_values)
    adjusted = multipletests(list(p_values), alpha=ALPHA, method="holm")[1]
    return tuple(min(1.0, float(value)) for value in adjusted)


def _adjusted(family: Sequence[Comparison]) -> Iterator[Comparison]:
    """The comparisons of one family with adjusted p values and the verdicts that follow."""
    tested = [comparison.p for comparison in family if comparison.p is not None]
    adjusted = iter(holm(tested))
    for comparison in family:
        if comparison.p is None:
            yield comparison.model_copy(update={"family": len(tested)})
            continue
        p_holm = next(adjusted)
        enough = comparison.verdict != "cannot decide"
        update = {"p_holm": p_holm, "family": len(tested), "verdict": _verdict(p_holm, comparison.difference, enough)}
        yield comparison.model_copy(update=update)


def _matches(rows: Sequence[RowKey], references: Sequence[RowKey]) -> dict[RowKey, list[tuple[RowKey, RowKey]]]:
    """For each reference the rows to compare, each with the row that stands for the reference."""
    seen: set[frozenset[RowKey]] = set()
    matches: dict[RowKey, list[tuple[RowKey, RowKey]]] = {reference: [] for reference in references}
    has_full = any(is_full(reference.compose) for reference in references)
    for reference in references:
        for row in rows:
            if has_full and is_full(row.compose) and not is_full(reference.compose):
                # Compositions are compared with the baseline, not the other way round.
                continue
            against = _at_amount(reference, row.amount, rows)
            pair = frozenset({row, against})
            if row != against and pair not in seen:
                seen.add(pair)
                matches[reference].append((row, against))
    return matches


def _at_amount(reference: RowKey, amount: str, rows: Sequence[RowKey]) -> RowKey:
    """The reference's composition at this amount: from its own run, else from any run, else the reference itself."""
    same = RowKey(reference.compose, amount)
    if same in rows:
        return same
    method = method_of(reference.compose)
    found = (row for row in rows if row.amount == amount and method_of(row.compose) == method)
    return next(found, reference)


def _pairs(
    info: MetricInfo, row: Mapping[PromptKey, TrialRecord], reference: Mapping[PromptKey, TrialRecord]
) -> list[Pair]:
    pairs = []
    for prompt in sorted(row.keys() & reference.keys()):
        mine, theirs = row[prompt], reference[prompt]
        value, other = mine.metrics.get(info.name), theirs.metrics.get(info.name)
        # The same sample with a different text is a different prompt.
        if value is not None and other is not None and mine.prompt_sha256 == theirs.prompt_sha256:
            pairs.append(Pair(value, other, mine.group))
    return pairs


def _differences(pairs: Sequence[Pair], logarithmic: bool) -> Estimate[dict[str, list[float]]]:
    """Row minus reference by group."""
    if logarithmic and any(value <= 0 for pair in pairs for value in pair[:2]):
        return Estimate(None, "a perplexity of 0 or less has no logarithm")
    by_group: dict[str, list[float]] = defaultdict(list)
    for row, reference, group in pairs:
        difference = math.log(row) - math.log(reference) if logarithmic else row - reference
        if not math.isfinite(difference):
            return Estimate(None, stats.TOO_LARGE)
        by_group[group].append(difference)
    return Estimate(dict(by_group))


def _signs(pairs: Sequence[Pair]) -> Signs | None:
    """Numbers of discordant pairs, None if some value is neither hit nor miss."""
    if any(value not in (0.0, 1.0) for pair in pairs for value in pair[:2]):
        return None
    return sum(pair.row > pair.reference for pair in pairs), sum(pair.row < pair.reference for pair in pairs)


def _mcnemar(signs: Signs | None, pairs: int) -> Estimate[float]:
    if pairs == 0:
        return Estimate(None, "no trial has a value")
    if signs is None:
        return Estimate(None, "some trials are neither hit nor miss, so McNemar's test does not apply")
    return Estimate(mcnemar(*signs))


def _verdict(p: float | None, difference: float | None, enough: bool) -> Verdict:
    if p is None or not enough:
        return "cannot decide"
    if p >= ALPHA or not difference:
        return "no difference shown"
    return "higher" if difference > 0 else "lower"
