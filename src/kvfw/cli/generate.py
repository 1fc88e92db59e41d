"""``kvfw generate``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvfw.cli.options import amount_options, model_options
from kvfw.errors import PromptError

if TYPE_CHECKING:
    from kvfw.runner.execute.generate import GeneratedText


@click.command("generate")
@click.argument("prompt", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the prompt, or its beginning, from a file.",
)
@click.option(
    "--compose", multiple=True, metavar="SPEC", help="Composition. Repeatable.  [default: snapkv:0.8+ewmeans_pre:0.2]"
)
@amount_options
@click.option("--max-new-tokens", type=int, default=64, show_default=True, help="Longest response in tokens.")
@click.option(
    "--compress-every",
    type=int,
    metavar="N",
    help="Also compress while answering, every N tokens, down to --slots, or to what the prompt was compressed to.",
)
@click.option(
    "--temperature",
    type=float,
    metavar="T",
    help="Sample tokens from logits divided by T.  [default: 0: always the most likely token]",
)
@click.option(
    "--top-p",
    type=float,
    metavar="P",
    help="Sample only from the most likely tokens that together reach probability P.  [default: 1]",
)
@click.option("--seed", type=int, help="Random seed, used anew for every answer.  [default: 0]")
@click.option("--raw", is_flag=True, help="No chat template: let the model continue the text.")
@model_options
def command(prompt: str | None, file: Path | None, **options: Any) -> int:
    """Answer a prompt of your own, with the full cache and compressed, side by side.

    PROMPT is the text; with --file it is put after the file's text. "-" reads it from standard input.
    """
    from kvfw.runner.execute.generate import generate
    from kvfw.runner.plan.config import GenerateConfig

    given = {name: value for name, value in options.items() if value is not None and value != ()}
    samples = generate(GenerateConfig(**given, prompt=_text(prompt, file)))
    _print(samples)
    return 0


def _text(prompt: str | None, file: Path | None) -> str:
    """The text of the prompt. Raises PromptError if there is none or the file cannot be read."""
    parts = []
    if file is not None:
        try:
            parts.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PromptError(f"cannot read the prompt from {file}: {error}") from None
    if prompt == "-":
        parts.append(sys.stdin.read())
    elif prompt is not None:
        parts.append(prompt)
    text = "\n\n".join(part.strip() for part in parts)
    if not text:
        raise PromptError("there is no prompt; give a text, --file FILE, or '-' for standard input")
    return text


def _print(samples: "tuple[GeneratedText, ...]") -> None:
    """Prints the answers side by side on a wide terminal, else one below the other."""
    from rich.console import Console

    from kvfw.report.grid import Cell, Column, Grid
    from kvfw.report.terminal import rich_table

    console = Console()
    if console.is_terminal and console.width >= 40 * len(samples):
        columns = tuple(Column(sample.title, "response") for sample in samples)
        texts = tuple(Cell(f"{sample.text}\n") for sample in samples)
        numbers = tuple(Cell(sample.numbers) for sample in samples)
        console.print(rich_table(Grid("answers", "", columns, (texts, numbers)), console.width))
        return
    for sample in samples:
        click.echo(f"--- {sample.title}: {sample.numbers}\n{sample.text}\n")
