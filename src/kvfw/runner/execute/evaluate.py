"""Runs an evaluation: checks the request, loads the model, runs missing trials and writes the files."""

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
    """Progress callbacks of an evaluation. By default they do nothing."""

    def note(self, text: str) -> None:
        """A message for the user."""
        return

    def begin(self, folder: Path, total: int, done: int) -> None:
        """The run has ``total`` trials, ``done`` of them recorded earlier."""
        return

    def prompt(self, text: str) -> None:
        """A prompt is being prefilled."""
        return

    def trial(self, record: TrialRecord) -> None:
        """One more trial is safe on disk."""
        return


class Silent(Progress):
    """Ignores all callbacks."""


@dataclass(frozen=True)
class Evaluation:
    """A finished run: the contents of ``results.json``, and the folder with its files."""

    results: Results
    folder: Path


def evaluate(
    config: EvalConfig, *, progress: Progress | None = None, registry: Registry | None = None, report: bool = True
) -> Evaluation:
    """Runs an experiment, or its missing trials, and writes its files.

    The request is checked completely before weights load. Each trial is written as soon as it is measured; after an
    interruption ``results.json`` covers the trials so far.

    Args:
        config: the request.
        progress: progress callbacks.
        registry: where parts are looked up; the installed ones by default.
        report: also write ``report.html`` and ``figures/`` once all trials are done.

    Raises:
        RequestError: the request is invalid; nothing was run.
        RunError: a download, a part or the disk failed; finished trials are safe.
    """
    tell = progress if progress is not None else Silent()
    found = registry if registry is not None else default_registry()
    # Problems of installed plugins were reported when the default registry was collected.
    for problem in (*(found.problems if registry is not None else ()), *metric_problems(found)):
        tell.note(problem)
    plan = prepare(config, found)
    path = config.out if config.out is not None else Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    with RunFolder.open(path, plan.settings, resume=config.resume, facts=facts(config, found)) as folder:
        records, problems = folder.records()
        for problem in (*problems, *changed_versions(folder.config.facts, folder.config.resumed)):
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
    # Imported here, so that an invalid request fails fast.
    from kvfw.model.cache.calibrated import check_calibrated
    from kvfw.model.cache.fingerprint import fingerprint
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
    parts = [part for row in plan.rows if row.compressor for part in row.compressor.composition.parts]
    check_calibrated(parts, lambda: fingerprint(loaded.model))
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
    """A warning if responses of the full cache were cut at ``max_new_tokens`` before giving any reference answer."""
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
    """Writes ``results.json`` and ``samples.md``; returns the results, the records, and problems reading them."""
    found, problems = folder.records()
    records = with_derived(found, plan.derived)
    order: list[RowKey] = [row.key for row in plan.rows]
    # An unfinished run may lack references.
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
