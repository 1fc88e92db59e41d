"""``kvfw eval``."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from kvfw.cli.options import amount_options, model_options, numbers
from kvfw.errors import KvfwError, OptionError


@click.command("eval")
@click.option(
    "--compose", multiple=True, metavar="SPEC", help="Composition, such as snapkv:0.8+ewmeans_pre:0.2. Repeatable."
)
@amount_options
@click.option("--task", metavar="SPEC", help="Task and its options, such as 'niah(seeds=3)'.  [default: niah]")
@click.option("--contexts", metavar="N,N", help="Prompt lengths in tokens (task option).  [niah: 1024]")
@click.option("--depths", metavar="P,P", help="Needle depths in percent (task option).  [niah: 10,30,50,70,90]")
@click.option("--seeds", type=int, help="Number of texts per length (task option).  [niah: 1]")
@click.option(
    "--haystack", type=click.Path(path_type=Path), metavar="FILE", help="Text file to hide needles in (task option)."
)
@click.option(
    "--begin-answer/--no-begin-answer",
    default=None,
    help="Begin the answer for the model (task option).  [niah: begin]",
)
@click.option(
    "--question-aware/--question-agnostic",
    default=None,
    help="Compress the prompt with or without its question.  [default: aware]",
)
@click.option(
    "--compress-every",
    type=int,
    metavar="N",
    help="Also compress while answering, every N tokens, down to --slots, or to what the prompt was compressed to.",
)
@click.option("--max-new-tokens", type=int, help="Longest response in tokens.  [default: the task's; niah: 24]")
@click.option(
    "--reference",
    multiple=True,
    metavar="SPEC",
    help="Composition to compare every row with. Repeatable.  [default: full and the first composition]",
)
@model_options
@click.option(
    "--preset", metavar="NAME", help="quick: 1024 tokens, 1 seed, ratio 4. founding: the whole founding experiment."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE.yaml",
    help="Read settings from a file; command-line options override them.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the run.  [default: a new one under runs/]"
)
@click.option("--resume", is_flag=True, default=None, help="Resume the run in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print results.json to standard output.")
def command(config_file: Path | None, preset: str | None, as_json: bool, **options: Any) -> int:
    """Evaluate compositions against the full cache.

    Every prompt is prefilled once; all compositions are compressed from it, decoded and measured. The table at the
    end has the uncompressed baseline, standard errors over runs and Wilson 95 % intervals.
    """
    from kvfw.cli.progress import progress_for
    from kvfw.runner.execute.evaluate import evaluate
    from kvfw.runner.plan.config import EvalConfig

    file_settings = _read_config(config_file)
    preset = preset if preset is not None else file_settings.pop("preset", None)
    given = {**file_settings, **_given(options)}
    config = EvalConfig.of(given, preset)
    with progress_for(sys.stderr) as progress:
        try:
            done = evaluate(config, progress=progress)
        except (KeyboardInterrupt, KvfwError) as error:
            if progress.folder is None:
                raise
            progress.close()
            click.echo(f"error: {error}" if isinstance(error, KvfwError) else "interrupted", err=True)
            click.echo(_how_to_resume(progress.folder, progress.done, progress.total), err=True)
            return error.exit_code if isinstance(error, KvfwError) else 1
    if as_json:
        click.echo(done.results.to_json(), nl=False)
    else:
        _print_table(done.results)
        click.echo(
            f"\nFiles in {done.folder}: report.html, results.json, trials.jsonl, samples.md, config.json, figures"
        )
    return 0


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options given on the command line."""
    options["contexts"] = numbers("--contexts", options["contexts"], int)
    options["depths"] = numbers("--depths", options["depths"], float)
    return {name: value for name, value in options.items() if value is not None and value != ()}


def _read_config(path: Path | None) -> dict[str, Any]:
    """Settings of a YAML file: fields of EvalConfig and ``preset``. OptionError if it is unreadable or no mapping."""
    if path is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        hint = "\nA composition that begins with [ stands in quotes" if isinstance(error, yaml.YAMLError) else ""
        raise OptionError(f"cannot read settings from {path}: {error}{hint}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise OptionError(f"{path} must hold a mapping of settings, such as 'ratio: [4, 8]'")
    return found


def _how_to_resume(folder: Path, done: int, total: int) -> str:
    arguments = [item for item in sys.argv[1:] if item != "--resume"]
    if "--out" not in arguments and not any(item.startswith("--out=") for item in arguments):
        arguments += ["--out", str(folder)]
    return f"{done} of {total} trials are safe in {folder}. To finish the run:\n  kvfw {shlex.join(arguments)} --resume"


def _print_table(results: Any) -> None:
    """Prints a table on a terminal, plain lines in a pipe."""
    from rich.console import Console

    from kvfw.report.terminal import plain_lines, results_table

    console = Console()
    if console.is_terminal:
        console.print(results_table(results, width=console.width))
    else:
        click.echo("\n".join(plain_lines(results)))
