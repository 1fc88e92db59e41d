"""``kvfw report``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfw.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from kvfw.analysis.sources import Source
    from kvfw.core.contracts.records import MetricInfo
    from kvfw.report.scatter import XAxis

FORMATS = ("html", "markdown", "csv", "latex", "all")
X_AXES = ("kv_mb", "size_ratio", "ratio")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="html",
    show_default=True,
    help="html comes with figures as PNG and PDF; latex needs the booktabs package only.",
)
@click.option(
    "--x-axis",
    type=click.Choice(X_AXES),
    default=X_AXES[0],
    show_default=True,
    help="What figures draw the scores against: bytes held, how many times smaller the whole cache is, or the amount.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the files.  [default: the run's folder; ./report for several runs]",
)
@click.option(
    "--reference",
    multiple=True,
    metavar="SPEC",
    help="Composition that all others are compared with. Repeatable.  [default: full and the first composition]",
)
def command(runs: tuple[Path, ...], form: str, x_axis: "XAxis", out: Path | None, reference: tuple[str, ...]) -> int:
    """Report one run, or several side by side: tables with intervals, comparisons, figures, samples.

    RUN is a folder that kvfw eval wrote; it may be unfinished. Runs must be of one experiment: the same model, task,
    prompts and mode.
    """
    from kvfw.analysis.sources import make_report
    from kvfw.report.files import FORMS, report_files
    from kvfw.store.atomic import write_atomic

    report = make_report([_source(run) for run in runs], [_canonical(text) for text in reference] or None)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    folder = out if out is not None else runs[0] if len(runs) == 1 else Path("report")
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file; --out must name a folder")
    for name, data in report_files(report, [each for each in FORMS if form in (each, "all")], x_axis):
        write_atomic(folder / name, data)
        click.echo(str(folder / name))
    return 0


def _source(folder: Path) -> "Source":
    """A run read from disk. Raises RequestError if there is none, StoreError if its files cannot be read."""
    from kvfw.analysis.sources import Source
    from kvfw.core.contracts.metric import DerivedMetric
    from kvfw.core.registry.registry import default_registry
    from kvfw.runner.execute.derive import with_derived
    from kvfw.runner.plan.metrics import registered_metrics
    from kvfw.store.run_folder import load_run

    loaded = load_run(folder)
    derived = tuple(part for part in registered_metrics(default_registry()) if isinstance(part, DerivedMetric))
    return Source(
        name=folder.resolve().name or str(folder),
        settings=loaded.config.settings,
        facts=loaded.config.facts,
        records=with_derived(loaded.records, derived),
        metrics=_metrics(folder, loaded.config.settings),
        problems=loaded.problems,
    )


def _metrics(folder: Path, settings: "Mapping[str, JsonValue]") -> "tuple[MetricInfo, ...]":
    """The metrics as the run's results describe them, or else as its settings and the installed metrics do."""
    from kvfw.analysis.results import read_results
    from kvfw.core.contracts.records import MetricInfo
    from kvfw.core.registry.registry import default_registry
    from kvfw.runner.plan.metrics import registered_metrics

    results = read_results(folder / "results.json")
    if results is not None:
        return results.metrics
    scores = settings.get("scores")
    known = [MetricInfo.model_validate(score) for score in scores] if isinstance(scores, list) else []
    return (*known, *(metric.info for metric in registered_metrics(default_registry())))


def _canonical(text: str) -> str:
    """The composition in canonical form, as rows are named; text that does not parse stays as it is."""
    from kvfw.core.compose.composition import parse

    try:
        return str(parse(text))
    except RequestError:
        return text.strip()
