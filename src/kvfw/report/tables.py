"""Builds the tables of a report from results. Numbers are formatted here only."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from kvfw.analysis.compare import Comparison
from kvfw.analysis.floor import NOTE, SIGN, below_floor
from kvfw.analysis.names import is_full
from kvfw.analysis.results import ResultRow, Results
from kvfw.analysis.samples import PromptAnswers
from kvfw.analysis.stats import Summary
from kvfw.core.contracts.records import MetricInfo, RowKey, TrialRecord
from kvfw.report.grid import Cell, Grid, Spec, grid_of
from kvfw.report.texts import MISSING, amount_text, difference_unit, heading, number, p_text, plain_text, signed

Detail = Literal["mean", "se", "ci95", "interval"]
"""What a cell shows: the mean, the mean with standard error, with error and interval, or the interval alone."""
Shown = Sequence[tuple[MetricInfo, Detail]]

REF_PPL: Final = "ref_ppl"
SHORT: Final[Mapping[str, Detail]] = {
    REF_PPL: "se",
    "kv_mb": "mean",
    "peak_kv_mb": "mean",
    "tok_s": "mean",
    "span_kept": "mean",
}
"""Metrics shown in a terminal after the primary score."""
MOST_REASONS: Final = 8
TOLERANCE: Final = 0.02
"""Ratios that came out and differ from those asked for by more than this, relatively, are explained."""
ROW: Final[tuple[Spec[ResultRow], ...]] = (
    ("Composition", "compose", lambda row: row.compose),
    ("Amount", "amount", lambda row: amount_text(row.amount)),
)


def summary_grid(
    results: Results,
    detail: Callable[[MetricInfo], Detail] = lambda info: "ci95",
    *,
    name: str = "summary",
    title: str = "Summary",
) -> Grid:
    """Every metric of every row, each in the detail that ``detail`` gives."""
    shown = [(info, detail(info)) for info in results.metrics]
    low = below_floor(results)
    specs: list[Spec[ResultRow]] = [
        *ROW,
        *_n(results),
        *_size(results),
        *((heading(info), "number", partial(_metric, info=info, detail=part, low=low)) for info, part in shown),
    ]
    notes = [*_statistics(results, shown), *_size_notes(results), *_floor_notes(low, shown)]
    return grid_of(name, title, results.rows, specs, notes)


def short_grid(results: Results, columns: Mapping[str, Detail] | None = None) -> Grid:
    """The table for a terminal: the metrics of ``columns``, units in the cells, reasons for missing values below."""
    if columns is None:
        primary = results.primary
        columns = {**({primary.name: "ci95"} if primary else {}), **SHORT}
    infos = {info.name: info for info in results.metrics}
    shown: Shown = [(infos[name], detail) for name, detail in columns.items() if name in infos]
    low = below_floor(results)
    specs: list[Spec[ResultRow]] = [
        ("Compose", "compose", lambda row: row.compose),
        ("Ratio", "number", lambda row: MISSING if row.ratio is None else f"{row.ratio:.2f}"),
        *_size(results, "Size"),
        *_n(results),
        *(
            (info.title, "number", partial(_metric, info=info, detail=detail, low=low, short=True))
            for info, detail in shown
        ),
    ]
    notes = [
        *_statistics(results, shown),
        *_size_notes(results, "Size"),
        *_floor_notes(low, shown),
        *missing_notes(results, shown, MOST_REASONS),
    ]
    return grid_of("summary", "", results.rows, specs, notes)


def facet_grids(results: Results) -> Iterator[Grid]:
    """The primary score by each facet that has several values."""
    primary = results.primary
    low = below_floor(results)
    for facet in dict.fromkeys(facet for row in results.rows for facet in row.by_facet):
        assert primary is not None
        scores = [score for row in results.rows for score in row.by_facet.get(facet, {}).values()]
        counts = {score.n for score in scores}
        hits = all(score.hits is not None for score in scores)
        common = len(counts) == 1
        mark = f" {SIGN}" if primary.name in low else ""
        texts = {text for row in results.rows for text in row.by_facet.get(facet, {})}
        cell = partial(_pooled, facet=facet, info=primary, hits=hits)
        specs: list[Spec[ResultRow]] = [
            *ROW,
            *_size(results),
            *(
                (text, "number", partial(cell, texts=(text,), with_n=not common))
                for text in sorted(texts, key=_by_value)
            ),
            (f"all{mark}", "number", partial(cell, texts=texts, with_n=True)),
        ]
        said = "Hits" if hits else "Mean"
        note = f"{said} of {_trials(counts.pop())}." if common else f"{said}{' / trials' if hits else ''}."
        notes = [note, *_size_notes(results), *_floor_notes(low, [(primary, "mean")])]
        yield grid_of(f"by-{facet}", f"{primary.title} by {facet}", results.rows, specs, notes)


def comparison_grids(results: Results, *, leading_only: bool = False) -> list[Grid]:
    """One grid per reference and metric, those of :func:`leading` first."""
    infos = {info.name: info for info in results.metrics}
    names = leading(results)
    if not leading_only:
        names += [name for name in infos if name not in names]
    references = list(dict.fromkeys(each.reference.compose for each in results.comparisons))
    return [
        comparison_grid(infos[name], reference, at, group, results)
        for name in names
        for at, reference in enumerate(references)
        if (group := [c for c in results.comparisons if (c.reference.compose, c.metric) == (reference, name)])
    ]


def leading(results: Results) -> list[str]:
    """Metrics whose comparisons are shown first, or alone if space is short."""
    primary = results.primary
    names = dict.fromkeys([*([primary.name] if primary else []), REF_PPL])
    return [name for name in names if name in {info.name for info in results.metrics}]


def comparison_grid(info: MetricInfo, reference: str, at: int, group: Sequence[Comparison], results: Results) -> Grid:
    """All rows compared with one reference on one metric: one family of tests."""
    logarithmic = group[0].scale == "log"
    same_amount = not is_full(reference) and any(each.reference.amount == each.row.amount for each in group)
    others = sorted({amount_text(each.reference.amount) for each in group if each.reference.amount != each.row.amount})
    title = f"{info.title} against {reference}"
    if same_amount:
        title += " at the same amount" + (f" (else at {', '.join(others)})" if others else "")
    discordant: list[Spec[Comparison]] = [
        ("Only this", "number", lambda each: MISSING if each.gained is None else each.gained),
        ("Only ref.", "number", lambda each: MISSING if each.lost is None else each.lost),
    ]
    rows = {RowKey(row.compose, row.amount): row for row in results.rows}
    specs: list[Spec[Comparison]] = [
        ("Composition", "compose", lambda each: each.row.compose),
        ("Amount", "amount", lambda each: amount_text(each.row.amount)),
        *(
            (title, kind, lambda each, shown=shown: shown(rows[RowKey(each.row.compose, each.row.amount)]))
            for title, kind, shown in _size(results)
        ),
        ("Pairs", "number", lambda each: each.pairs),
        *(discordant if info.proportion else ()),
        (f"Difference, {difference_unit(info, logarithmic)}", "number", partial(_difference, info=info)),
        ("p", "number", lambda each: p_text(each.p)),
        ("p (Holm)", "number", lambda each: p_text(each.p_holm)),
        ("Verdict", "verdict", lambda each: each.verdict),
    ]
    reasons = sorted({reason for each in group for reason in each.reasons.values()})
    notes = [" ".join(_test_notes(info.proportion, logarithmic, group)), *(f"{MISSING}: {each}." for each in reasons)]
    notes += _size_notes(results)
    return grid_of(f"{info.name}-{at}", title, group, specs, [note for note in notes if note])


def short_comparison(results: Results, most: int = 10**6) -> Grid | None:
    """The primary score of every row against the first ``most`` references; None without comparisons."""
    info = results.primary
    found = {
        (RowKey(each.row.compose, each.row.amount), each.reference.compose): each
        for each in results.comparisons
        if info is not None and each.metric == info.name
    }
    if info is None or not found:
        return None
    every = list(dict.fromkeys(reference for _, reference in found))
    left_out = len(every[most:])
    specs: list[Spec[RowKey]] = [
        (f"{info.title}, difference", "compose", lambda row: row.compose),
        ("Amount", "number", lambda row: amount_text(row.amount)),
        *((f"vs {each}", "number", partial(_against, found, each, info)) for each in every[:most]),
    ]
    test = (
        "+ − prompts that only the row, only the reference answers; exact McNemar, Holm-adjusted per column, "
        "trials taken as independent. Fewer than 6 such prompts cannot decide."
        if info.proportion
        else "Paired bootstrap, groups drawn within their stratum, Holm-adjusted per column. Fewer than 6 groups "
        "cannot decide."
    )
    notes = [test, *([f"{left_out} more references are in the results file."] if left_out else [])]
    return grid_of("comparison", "", dict.fromkeys(row for row, _ in found), specs, notes)


def sample_grid(sample: PromptAnswers, info: MetricInfo | None, max_chars: int) -> Grid:
    """Every row's response to one prompt, cut after ``max_chars`` characters."""
    specs: list[Spec[TrialRecord]] = [
        ("Composition", "compose", lambda trial: trial.key.compose),
        ("Amount", "amount", lambda trial: amount_text(trial.key.amount)),
        (info.title if info else "", "text", partial(_score, info=info)),
        ("Response", "response", lambda trial: _cut(trial.response, max_chars)),
    ]
    return grid_of("sample", sample.title, sample.trials, specs)


def pairs_grid(title: str, pairs: Sequence[tuple[str, object]]) -> Grid:
    """Names and their values."""
    columns: list[Spec[tuple[str, object]]] = [
        ("", "text", lambda pair: pair[0]),
        ("", "text", lambda pair: plain_text(pair[1])),
    ]
    return grid_of("pairs", title, pairs, columns)


def missing_notes(results: Results, shown: Shown | None = None, most: int = 10**6) -> tuple[str, ...]:
    """Why values are missing or rest on fewer trials than the row has, one line per metric and reason."""
    # A dict, not a set, to keep the order of rows and columns.
    lines = dict.fromkeys(f"Ratio {MISSING}: {row.reasons['ratio']}." for row in results.rows if row.reasons)
    for info, detail in shown if shown is not None else [(info, "ci95") for info in results.metrics]:
        left_out: dict[str, int] = {}
        for row in results.rows:
            summary = row.metrics[info.name]
            lines.update((f"{info.title} {note}.", None) for note in _absent(summary, detail))
            if summary.mean is not None:
                for reason, count in summary.missing.items():
                    left_out[reason] = max(count, left_out.get(reason, 0))
        for reason, count in left_out.items():
            lines[f"{info.title} without {count} of a row's trials: {reason}."] = None
    more = len(lines) - most
    return (*list(lines)[:most], *([f"{more} more such notes are in the results file."] if more > 0 else []))


def metric_cell(summary: Summary, info: MetricInfo, detail: Detail = "ci95", *, short: bool = False) -> Cell:
    """``84.4 ± 4.4`` and ``[71.2, 92.3]``; percentages times 100, with their sign only if ``short``."""
    # Intervals are about ten percent wide, so whole percents suffice.
    digits = 0 if short and info.unit == "%" else info.digits
    interval = "" if summary.ci95 is None else "[{}, {}]".format(*(number(end, info, digits) for end in summary.ci95))
    if detail == "interval":
        return Cell(interval or MISSING)
    if summary.mean is None:
        return Cell(MISSING)
    main = number(summary.mean, info)
    if detail != "mean" and summary.se is not None:
        main += f" ± {number(summary.se, info)}"
    if short and info.unit == "%":
        main += " %"
    return Cell(main, interval if detail == "ci95" else "")


def _metric(
    row: ResultRow, *, info: MetricInfo, detail: Detail, low: Collection[str] = (), short: bool = False
) -> Cell:
    cell = metric_cell(row.metrics[info.name], info, detail, short=short)
    return cell._replace(main=f"{cell.main} {SIGN}") if info.name in low else cell


def _floor_notes(low: Collection[str], shown: Shown) -> list[str]:
    """Explains the sign of scores on which the full cache fails, if one is shown."""
    return [f"{NOTE}."] if any(info.name in low for info, _ in shown) else []


def _n(results: Results) -> list[Spec[ResultRow]]:
    """A column with the number of trials, if rows differ in it."""
    return [("n", "number", lambda row: row.n)] if len({row.n for row in results.rows}) > 1 else []


def _statistics(results: Results, shown: Shown) -> Iterator[str]:
    """Explains the signs that occur in the cells."""
    there = [(info, detail, row.metrics[info.name]) for row in results.rows for info, detail in shown]
    ranged = dict.fromkeys(info for info, detail, each in there if detail in ("ci95", "interval") and each.ci95)
    notes = []
    if len({row.n for row in results.rows}) == 1:
        notes.append(f"n = {results.rows[0].n} trials in every row.")
    if any(detail in ("se", "ci95") and summary.se is not None for _, detail, summary in there):
        notes.append("± standard error over groups (prompts that share a text).")
    hits = [info.title for info in ranged if info.proportion]
    drawn = [info for info in ranged if not info.proportion]
    if hits:
        which = f"of {', '.join(hits)}: " if drawn else ""
        notes.append(f"[ , ] {which}Wilson 95 % interval, trials taken as independent.")
    if drawn:
        which = "of the rest: " if hits else ""
        notes.append(f"[ , ] {which}bootstrap 95 % interval, groups resampled within their stratum.")
        if any(row.metrics[info.name].few_groups for row in results.rows for info in drawn):
            notes.append("Few groups (under 10): bootstrap intervals are rough.")
    if notes:
        yield " ".join(notes)


def _absent(summary: Summary, detail: Detail) -> list[str]:
    """Why parts of a cell are missing, one reason each."""
    if summary.mean is None:
        # Why trials have no value says more than that none has one.
        return [f"{MISSING}: {reason}" for reason in (summary.missing or [summary.reasons["mean"]])]
    parts = {"se": ("±", detail != "mean"), "ci95": ("[ , ]", detail == "ci95")}
    return [
        f"has no {sign}: {summary.reasons[name]}"
        for name, (sign, wanted) in parts.items()
        if wanted and name in summary.reasons
    ]


def _size(results: Results, title: str = "Size ratio") -> list[Spec[ResultRow]]:
    """A column with size ratios, if any is known; rows that did not come out as asked are marked."""

    def cell(row: ResultRow) -> str:
        mark = "*" if _missed(row) else ""
        return (MISSING if row.size_ratio is None else f"{row.size_ratio:.2f}") + mark

    return [(title, "number", cell)] if results.size_ratios or any(map(_missed, results.rows)) else []


def _missed(row: ResultRow) -> bool:
    """Whether the middle did not become as many times smaller as was asked for."""
    return bool(row.ratio and row.held_ratio) and abs((row.held_ratio or 1) / (row.ratio or 1) - 1) > TOLERANCE


def _size_notes(results: Results, title: str = "Size ratio") -> Iterator[str]:
    sizes = results.size_ratios
    if sizes:
        note = f"{title}: how many times smaller the whole prompt's cache is than that of full."
        asked = {RowKey(row.compose, row.amount): row.ratio for row in results.rows}
        if any(abs(size / (asked[row] or size) - 1) > TOLERANCE for row, size in sizes.items()):
            note += (
                " It differs from the amount asked for, which is of the middle of the prompt in compressed layers: "
                "first and last tokens, layers under full and layers with a sliding window are not compressed."
            )
        if any(size > (asked[row] or size) * (1 + TOLERANCE) for row, size in sizes.items()):
            note += " Codecs make slots smaller."
        yield note
    if missed := [row for row in results.rows if _missed(row)]:
        listed = "; ".join(
            f"{row.compose} at {amount_text(row.amount)}: {row.held_ratio:.2f}, not {row.ratio:.2f}" for row in missed
        )
        yield f"* The middle of compressed layers became another number of times smaller than asked for. {listed}."


def _pooled(row: ResultRow, *, facet: str, info: MetricInfo, hits: bool, texts: Collection[str], with_n: bool) -> str:
    """The primary score over the trials with these values of a facet."""
    scores = [score for text, score in row.by_facet.get(facet, {}).items() if text in texts]
    n = sum(score.n for score in scores)
    if not n:
        return MISSING
    if not hits:
        return number(sum(score.mean * score.n for score in scores) / n, info)
    return f"{sum(score.hits or 0 for score in scores)}{f'/{n}' if with_n else ''}"


def _trials(n: int) -> str:
    return "1 trial" if n == 1 else f"{n} trials"


def _by_value(text: str) -> tuple[bool, float, str]:
    """Sort key of facet values: numbers by value, then words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _test_notes(hits: bool, logarithmic: bool, group: Sequence[Comparison]) -> Iterator[str]:
    """Explains how the columns that are not empty were computed."""
    intervals = any(each.ci95 is not None for each in group)
    family = max(each.family for each in group)
    if family:
        yield (
            "McNemar's exact test on the pairs that only one row answers, two-sided, trials taken as independent."
            if hits
            else "Two-sided paired bootstrap, groups drawn within their stratum."
        )
    if logarithmic:
        yield "Perplexities are compared by their logarithm."
    if family:
        yield f"Holm-adjusted over {family} test{'' if family == 1 else 's'}: this table."
        yield f"Fewer than 6 {'such pairs' if hits else 'groups'} cannot reach p < .05: “cannot decide”."
    if hits and intervals:
        yield "Interval: paired bootstrap, groups drawn within their stratum."
    if intervals and any(each.few_groups for each in group):
        yield "Few groups: bootstrap intervals are rough." if hits else "Few groups: interval and p are rough."


def _difference(each: Comparison, *, info: MetricInfo) -> Cell:
    """``−6.7`` and ``[−11.1, −2.2]``: signed, in the unit of :func:`~kvfw.report.texts.difference_unit`."""
    if each.difference is None:
        return Cell(MISSING)
    interval = "" if each.ci95 is None else "[{}, {}]".format(*(signed(end, info, each) for end in each.ci95))
    return Cell(signed(each.difference, info, each), interval)


def _against(found: Mapping[tuple[RowKey, str], Comparison], reference: str, info: MetricInfo, row: RowKey) -> Cell:
    """``−6.7 (+0 −3)`` and ``cannot decide``, ``−91.1 (+0 −41)`` and ``p<.001``."""
    each = found.get((row, reference))
    if each is None or each.difference is None:
        return Cell(MISSING)
    text = signed(each.difference, info, each)
    if each.gained is not None and each.lost is not None:
        text += f" (+{each.gained} −{each.lost})"
    p = p_text(each.p_holm)
    return Cell(text, each.verdict if each.verdict == "cannot decide" else f"p{p}" if p.startswith("<") else f"p={p}")


def _score(trial: TrialRecord, *, info: MetricInfo | None) -> str:
    value = trial.metrics.get(info.name) if info else None
    if info is None or value is None:
        return MISSING
    return ("hit" if value else "miss") if info.proportion and value in (0.0, 1.0) else number(value, info)


def _cut(text: str, max_chars: int) -> str:
    """The beginning of the text; empty if it is all white space."""
    if not text.strip():
        return ""
    return text if len(text) <= max_chars else text[:max_chars] + " …"
