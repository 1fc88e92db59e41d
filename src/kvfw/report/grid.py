"""Tables as texts, for every format to write down in its own way. Numbers are formatted here and nowhere else."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvfw.analysis.compare import Comparison
from kvfw.analysis.names import is_full
from kvfw.analysis.results import RECALL, ResultRow, Results
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import MetricInfo
from kvfw.report.texts import MISSING, amount_text, difference_unit, heading, number, p_text, signed

LEADING: Final = (RECALL, "ref_ppl")
"""Metrics whose comparisons are shown first, and alone where room is short."""


class Cell(NamedTuple):
    """A value, and its interval where it has one."""

    main: str
    interval: str = ""

    def __str__(self) -> str:
        return f"{self.main} {self.interval}" if self.interval else self.main


class Grid(NamedTuple):
    """A table.

    Attributes:
        name: short and unique, for labels and anchors.
        title: what it shows.
        heading: column titles.
        rows: as long as the heading.
        texts: how many columns on the left are texts; the rest are numbers.
        composes: how many of those hold compositions, which may be broken between stages.
        notes: to stand below.
    """

    name: str
    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int
    composes: int
    notes: tuple[str, ...] = ()


def summary_grid(results: Results) -> Grid:
    """Every metric of every row with standard error and interval."""
    few = any(row.metrics[info.name].few_runs for row in results.rows for info in results.metrics)
    same = len({row.n for row in results.rows}) == 1
    notes = (
        *((f"n = {results.rows[0].n} trials in every row.",) if same else ()),
        "± standard error over runs (context × seed).",
        *_interval_notes(results.metrics, few),
    )
    return Grid(
        "summary",
        "Summary",
        ("Composition", "Amount", *(() if same else ("n",)), *(heading(info) for info in results.metrics)),
        tuple(
            (
                Cell(row.compose),
                Cell(amount_text(row.amount)),
                *(() if same else (Cell(str(row.n)),)),
                *(metric_cell(row.metrics[info.name], info) for info in results.metrics),
            )
            for row in results.rows
        ),
        texts=2,
        composes=1,
        notes=notes,
    )


def depth_grid(results: Results) -> Grid | None:
    """Hits by depth; None where no row has them."""
    depths = sorted({depth for row in results.rows for depth in row.recall_by_depth}, key=float)
    if not depths:
        return None
    counts = {cell.n for row in results.rows for cell in row.recall_by_depth.values()}
    common = next(iter(counts)) if len(counts) == 1 else None
    note = f"Hits of {common} trials." if common is not None else "Hits / trials."
    return Grid(
        "depths",
        "Recall by depth of the needle",
        ("Composition", "Amount", *(f"{depth} %" for depth in depths), "all"),
        tuple(
            (
                Cell(row.compose),
                Cell(amount_text(row.amount)),
                *(Cell(_hits(row, depth, common is None)) for depth in depths),
                Cell(_total(row)),
            )
            for row in results.rows
        ),
        texts=2,
        composes=1,
        notes=(f"{note} Depth: where the needle stands in the haystack.",),
    )


def comparison_grids(results: Results, *, leading_only: bool = False) -> list[Grid]:
    """One grid per reference and metric, recall and Ref PPL first."""
    infos = {info.name: info for info in results.metrics}
    names = [name for name in LEADING if name in infos]
    if not leading_only:
        names += [name for name in infos if name not in LEADING]
    references = list(dict.fromkeys(each.reference.compose for each in results.comparisons))
    groups = {
        (reference, name): [
            each for each in results.comparisons if (each.reference.compose, each.metric) == (reference, name)
        ]
        for name in names
        for reference in references
    }
    return [
        comparison_grid(infos[name], reference, references.index(reference), group)
        for (reference, name), group in groups.items()
        if group
    ]


def comparison_grid(info: MetricInfo, reference: str, at: int, group: Sequence[Comparison]) -> Grid:
    """All rows against one reference on one metric: one family of tests."""
    hits = info.proportion
    family = max(each.family for each in group)
    few = any(each.few_runs for each in group)
    same_amount = not is_full(reference) and any(each.reference.amount == each.row.amount for each in group)
    others = sorted({amount_text(each.reference.amount) for each in group if each.reference.amount != each.row.amount})
    title = f"{info.title} against {reference}"
    if same_amount:
        title += " at the same amount" + (f" (else at {', '.join(others)})" if others else "")
    notes = [
        "McNemar's exact test on the pairs that only one row answers, two-sided, trials taken as independent."
        if hits
        else "Two-sided paired bootstrap, runs drawn, seeds within each context."
        + (" Perplexities are compared by their logarithm." if group[0].scale == "log" else ""),
        f"Holm-adjusted over {family} test{'' if family == 1 else 's'}: this table.",
        f"Fewer than 6 {'such pairs' if hits else 'runs'} cannot reach p < .05: “cannot decide”.",
    ]
    if hits:
        notes.append("Interval: paired bootstrap, runs drawn, seeds within each context.")
    if few:
        notes.append("Few runs: bootstrap intervals are rough." if hits else "Few runs: interval and p are rough.")
    return Grid(
        f"{info.name}-{at}",
        title,
        (
            "Composition",
            "Amount",
            "Pairs",
            *(("Only this", "Only ref.") if hits else ()),
            f"Difference, {difference_unit(info, group[0].scale == 'log')}",
            "p",
            "p (Holm)",
            "Verdict",
        ),
        tuple(
            (
                Cell(each.row.compose),
                Cell(amount_text(each.row.amount)),
                Cell(str(each.pairs)),
                *((Cell(_count(each.gained)), Cell(_count(each.lost))) if hits else ()),
                difference_cell(each, info),
                Cell(p_text(each.p)),
                Cell(p_text(each.p_holm)),
                Cell(each.verdict),
            )
            for each in group
        ),
        texts=2,
        composes=1,
        notes=(" ".join(notes), *_comparison_reasons(group)),
    )


def metric_cell(summary: Summary, info: MetricInfo) -> Cell:
    """``84.4 ± 4.4`` and ``[71.2, 92.3]``; percentages times 100, units stand in the heading."""
    if summary.mean is None:
        return Cell(MISSING)
    main = number(summary.mean, info)
    if summary.se is not None:
        main += f" ± {number(summary.se, info)}"
    if summary.ci95 is None:
        return Cell(main)
    return Cell(main, "[{}, {}]".format(*(number(end, info) for end in summary.ci95)))


def difference_cell(each: Comparison, info: MetricInfo) -> Cell:
    """``−6.7`` and ``[−11.1, −2.2]``: signed, in the unit of :func:`difference_unit`."""
    if each.difference is None:
        return Cell(MISSING)
    interval = "" if each.ci95 is None else "[{}, {}]".format(*(signed(end, info, each) for end in each.ci95))
    return Cell(signed(each.difference, info, each), interval)


def null_notes(results: Results) -> tuple[str, ...]:
    """Why values are missing or rest on fewer trials, each said once."""
    lines: dict[str, None] = {}
    for info in results.metrics:
        for row in results.rows:
            summary = row.metrics[info.name]
            for reason, count in summary.missing.items():
                lines[f"{info.title}: no value in {count} of {row.n} trials of a row: {reason}."] = None
            for part, reason in summary.reasons.items():
                what = {"mean": "mean", "se": "standard error", "ci95": "interval"}[part]
                lines[f"{info.title}: no {what}: {reason}."] = None
    lines.update((f"Ratio: {row.reasons['ratio']}.", None) for row in results.rows if "ratio" in row.reasons)
    return tuple(lines)


def _interval_notes(metrics: Sequence[MetricInfo], few: bool) -> tuple[str, ...]:
    notes = []
    if any(info.proportion for info in metrics):
        hits = ", ".join(info.title for info in metrics if info.proportion)
        notes.append(f"[ , ] of {hits}: Wilson 95 % interval, trials taken as independent.")
    if any(not info.proportion for info in metrics):
        notes.append("[ , ] of the rest: bootstrap 95 % interval, seeds resampled within each context.")
    if few:
        notes.append("Few runs (under 10): bootstrap intervals are rough.")
    return tuple(notes)


def _comparison_reasons(group: Sequence[Comparison]) -> tuple[str, ...]:
    reasons = {reason for each in group for reason in each.reasons.values()}
    return tuple(f"{MISSING}: {reason}." for reason in sorted(reasons))


def _hits(row: ResultRow, depth: str, with_n: bool) -> str:
    cell = row.recall_by_depth.get(depth)
    if cell is None:
        return MISSING
    return f"{cell.hits}/{cell.n}" if with_n else str(cell.hits)


def _total(row: ResultRow) -> str:
    cells = row.recall_by_depth.values()
    return f"{sum(cell.hits for cell in cells)}/{sum(cell.n for cell in cells)}" if cells else MISSING


def _count(value: int | None) -> str:
    return MISSING if value is None else str(value)
