"""``kvfw bench``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfw.cli.options import numbers
from kvfw.errors import OptionError
from kvfw.store.atomic import write_atomic

if TYPE_CHECKING:
    from kvfw.bench.findings import Findings


@click.command("bench")
@click.option("--model", default="smollm2-135m", show_default=True, help="Embedded name, local folder or hub id.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps ...")
@click.option("--compose", multiple=True, metavar="SPEC", help="Measure this composition too. Repeatable.")
@click.option(
    "--contexts",
    default="512,1024,2048,3072,4096",
    show_default=True,
    help="Prompt lengths in tokens; 3072, which the promises are about, is added.",
)
@click.option(
    "--scaling",
    default="1024,2048,4096,8192,16384,32768",
    show_default=True,
    help='Prompt lengths on a small random model; "" for none.',
)
@click.option("--repeats", type=int, default=3, show_default=True, help="Rounds of every measurement.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write bench.json and figures there.")
@click.option("--json", "json_only", is_flag=True, help="Print bench.json to standard output.")
def command(
    model: str,
    device: str,
    compose: tuple[str, ...],
    contexts: str,
    scaling: str,
    repeats: int,
    out: Path | None,
    json_only: bool,
) -> int:
    """Measure what compression costs: time, memory and a whole evaluation, against what kvfw promises.

    Everything is a ratio within one run: absolute times of a busy machine say little. Takes a quarter of an hour or
    more; bench.json is written after every part, so it holds what was measured, however the command ends.
    """
    if repeats < 1:
        raise OptionError(f"--repeats is {repeats}; measure at least once")
    if out is not None and out.exists() and not out.is_dir():
        raise OptionError(f"--out {out} is a file; name a folder")
    if out is not None and (out / "bench.json").exists():
        raise OptionError(f"--out {out} holds an earlier benchmark, which would be lost; name another folder")
    from kvfw.bench.run import Request, run
    from kvfw.bench.tables import as_json
    from kvfw.core.registry.registry import default_registry

    growing = numbers("--scaling", scaling, int) if scaling.strip() else None
    request = Request(model, device, compose, numbers("--contexts", contexts, int) or (), growing or (), repeats)
    found: Findings | None = None
    try:
        for found in run(request, default_registry(), lambda text: click.echo(f"measuring {text}", err=True)):
            if out is not None:
                write_atomic(out / "bench.json", as_json(found).encode())
    finally:
        # Show the measurements so far even after a failure.
        if found is not None:
            _show(found, out, json_only)
    assert found is not None
    return 0 if all(bar.met is not False for bar in found.bars) else 1


def _show(found: "Findings", out: Path | None, json_only: bool) -> None:
    from kvfw.bench.figures import figures
    from kvfw.bench.tables import as_json, tables

    if out is not None:
        for drawing in figures(found):
            write_atomic(out / f"{drawing.name}.png", drawing.save("png"))
    if json_only:
        click.echo(as_json(found), nl=False)
        return
    from rich.console import Console

    from kvfw.report.terminal import rich_table

    console = Console()
    for grid in tables(found):
        console.print(rich_table(grid, console.width), "")
