"""The whole job: check, load, run what is missing, write the files of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from kvfw.analysis.results import Results, summarise
from kvfw.core.contracts.records import FULL, RowKey, TrialRecord
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.report.markdown import samples_markdown
from kvfw.runner.execute.derive import with_derived
from kvfw.runner.execute.provenance import changed_versions, facts
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.guarded import complaints
from kvfw.runner.plan.metrics import metric_problems
from kvfw.runner.plan.prepare import EvalPlan, prepare
from kvfw.store.run_folder import RunFolder


class Progress(Protocol):
    """Is told how an evaluation goes on."""

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def begin(self, folder: Path, total: int, done: int) -> None:
        """``total`` trials make the run, ``done`` of them were recorded before."""
        ...

    def prompt(self, text: str) -> None:
        """A prompt is being prefilled."""
        ...

    def trial(self, record: TrialRecord) -> None:
        """One more trial is safe on disk."""
        ...


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def begin(self, folder: Path, total: int, done: int) -> None:
        """Nothing."""

    def prompt(self, text: str) -> None:
        """Nothing."""

    def trial(self, record: TrialRecord) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Evaluation:
    """A finished run.

    Args:
        results: what ``results.json`` holds.
        folder: where the run's files are.
    """

    results: Results
    folder: Path


def evaluate(
    config: EvalConfig,
    *,
    progress: Progress | None = None,
    registry: Registry | None = None,
    report: bool = True,
) -> Evaluation:
    """Runs an experiment, or what is missing of it, and writes its files.

    Everything about the request is checked before weights load. Each trial is on disk as soon as it is measured; on
    an interruption ``results.json`` covers what there is.

    Args:
        config: the request.
        progress: is told how it goes on.
        registry: where parts are looked up; the installed ones by default.
        report: write ``report.html`` and ``figures/`` too, once all trials are done.

    Raises:
        RequestError: the request is wrong; nothing was run.
        RunError: a download, a part or the disk failed; finished trials are safe.
    """
    tell = progress if progress is not None else Silent()
    found = registry if registry is not None else default_registry()
    # What is wrong with installed plugins was said when they were collected.
    for problem in (*(found.problems if registry is not None else ()), *metric_problems(found)):
        tell.note(problem)
    plan = prepare(config, found)
    path = config.out if config.out is not None else Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    with RunFolder.open(path, plan.settings, resume=config.resume, facts=facts(config, found)) as folder:
        for problem in (*folder.problems, *changed_versions(folder.config.facts, folder.config.resumed)):
            tell.note(problem)
        records, problems = folder.records()
        for problem in problems:
            tell.note(problem)
        if config.resume and not records:
            tell.note(f"nothing was recorded in {path} yet: starting from the beginning")
        try:
            _run_missing(plan, folder, records, tell)
        finally:
            results, measured, problems = _write(plan, folder)
        for line in (*complaints(measured, (*plan.metrics, *plan.derived)), *cut_short(measured)):
            tell.note(line)
        if report:
            tell.note("writing report.html and figures")
            _write_report(folder, results, measured, problems)
    return Evaluation(results, path)


def _run_missing(plan: EvalPlan, folder: RunFolder, records: Sequence[TrialRecord], tell: Progress) -> None:
    done = {record.key for record in records}
    # Only now, so that a wrong request costs no time.
    from kvfw.model.load.sentence import SentenceEncoder
    from kvfw.runner.execute.answers import Tools
    from kvfw.runner.execute.telemetry import rope_inversion
    from kvfw.runner.execute.trial import fill, run_prompt

    left = [
        sum(planned.key(row.key, question) not in done for row in plan.rows for question in planned.questions)
        for planned in plan.prompts
    ]
    total = len(plan.rows) * sum(len(planned.questions) for planned in plan.prompts)
    tell.begin(folder.path, total, total - sum(left))
    if not any(left):
        return
    config = plan.config
    loaded = plan.model.load(dtype=config.dtype, device=config.device)
    tools = Tools(loaded, SentenceEncoder())
    for planned, due in zip(plan.prompts, left, strict=True):
        if not due:
            continue
        tell.prompt(f"sample {planned.sample.id}, {len(planned.compressed_ids)} tokens")
        filled = fill(plan, planned, tools)
        if "rope_inversion" not in folder.config.facts:
            folder.add_facts({"rope_inversion": rope_inversion(filled)})
        for record in run_prompt(plan, planned, filled, done, tools):
            folder.append(record)
            tell.trial(record)


def cut_short(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """A line on responses of the full cache that ended at ``max_new_tokens`` without any of their references."""
    full = [record for record in records if record.key.compose == FULL]
    cut = [
        record
        for record in full
        if record.extra.get("response_cut")
        and record.references
        and not any(reference in record.response for reference in record.references)
    ]
    if not cut:
        return ()
    tokens = max(record.extra["response_tokens"] for record in cut)
    return (
        f"{len(cut)} of {len(full)} responses of the full cache were cut after {tokens:g} tokens, without what "
        "was asked for: allow longer ones with --max-new-tokens, or the scores say nothing about compression",
    )


def _write(plan: EvalPlan, folder: RunFolder) -> tuple[Results, tuple[TrialRecord, ...], tuple[str, ...]]:
    """Writes ``results.json`` and ``samples.md`` of what is recorded; returns that too, and what could not be read."""
    found, problems = folder.records()
    records = with_derived(found, plan.derived)
    order: list[RowKey] = [row.key for row in plan.rows]
    # An unfinished run may not have every reference yet.
    present = {record.key.row for record in records}
    references = None if plan.references is None else [row for row in plan.references if row in present]
    results = summarise(records, plan.settings, plan.infos, order=order, references=references)
    folder.write_text("results.json", results.to_json())
    folder.write_text("samples.md", samples_markdown(records, results.metrics, order=order))
    return results, records, problems


def _write_report(
    folder: RunFolder, results: Results, records: tuple[TrialRecord, ...], problems: tuple[str, ...]
) -> None:
    """Writes ``report.html`` and ``figures/`` of a finished run."""
    from kvfw.analysis.sources import Report, Source
    from kvfw.report.files import report_files

    config = folder.config
    source = Source(folder.path.name, config.settings, config.facts, records, results.metrics, problems)
    for name, data in report_files(Report(results, records, (source,), problems)):
        folder.write_bytes(name, data)
