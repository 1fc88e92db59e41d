"""``kvfw calibrate``."""

from pathlib import Path
from typing import Any

import click


@click.command("calibrate")
@click.argument("part")
@click.option("--text", type=click.Path(path_type=Path), required=True, metavar="FILE", help="UTF-8 text to read.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="The file.  [default: PART-MODEL.safetensors]"
)
@click.option("--pieces", type=int, default=32, show_default=True, help="Pieces of the text to read, evenly spaced.")
@click.option("--length", type=int, default=1024, show_default=True, help="Tokens of a piece.")
@click.option("--model", default="smollm2-135m", show_default=True, help="Embedded name, local folder or hub id.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps ...")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32, bfloat16 or float16.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model.")
def command(**given: Any) -> int:
    """Let a part learn from a text with a model, and write what it learned to a file for its option file=.

    PART is a part with its options, such as expected or "kvzap(ridge=0.01)". The text must not be the one that you
    evaluate on: an evaluation refuses a file made from its own text.
    """
    from kvfw.runner.execute.calibrate import CalibrationRequest, calibrate

    done = calibrate(CalibrationRequest(**given), tell=lambda text: click.echo(text, err=True))
    for name, value in done.figures.items():
        click.echo(f"{name}: {value:.3f}")
    click.echo(f"wrote {done.path}; use it as {given['part'].partition('(')[0]}(file={done.path})")
    return 0
