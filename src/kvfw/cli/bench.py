"""``kvfw bench``."""

from pathlib import Path
from typing import Any

import click

from kvfw.cli.options import numbers
from kvfw.errors import OptionError


@click.command("bench")
@click.option("--model", default="smollm2-135m", show_default=True, help="Embedded name, local folder or hub id.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps ...")
@click.option("--compose", multiple=True, metavar="SPEC", help="Measure this composition too. Repeatable.")
@click.option("--contexts", metavar="N,N", help="Prompt lengths in tokens.  [default: 512,1024,2048,3072,4096]")
@click.option(
    "--scaling",
    metavar="N,N",
    help='Prompt lengths on a small random model; "" for none.  [default: 1024 to 32768, doubling]',
)
@click.option("--repeats", type=int, default=3, show_default=True, help="Rounds of every measurement.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write bench.json and figures there.")
@click.option("--json", "json_only", is_flag=True, help="Print bench.json to standard output.")
def command(
    model: str,
    device: str,
    compose: tuple[str, ...],
    contexts: str | None,
    scaling: str | None,
    repeats: int,
    out: Path | None,
    json_only: bool,
) -> int:
    """Measure what compression costs: time, memory and a whole evaluation, against what kvfw promises.

    Everything is a ratio within one run: absolute times of a busy machine say little. Takes some ten minutes.
    """
    if repeats < 1:
        raise OptionError(f"--repeats is {repeats}; measure at least once")
    if out is not None and out.exists() and not out.is_dir():
        raise OptionError(f"--out {out} is a file; name a folder")
    from kvfw.bench.run import Request, run
    from kvfw.core.registry import default_registry

    given: dict[str, Any] = {"model": model, "device": device, "compose": compose, "repeats": repeats}
    if contexts is not None:
        given["contexts"] = numbers("--contexts", contexts, int)
    if scaling is not None:
        given["scaling"] = numbers("--scaling", scaling, int) if scaling.strip() else ()
    found = run(Request(**given), default_registry(), lambda text: click.echo(f"measuring {text}", err=True))

    from rich.console import Console

    from kvfw.bench.figures import figures
    from kvfw.bench.tables import as_json, tables

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.json").write_text(as_json(found), encoding="utf-8")
        for drawing in figures(found):
            (out / f"{drawing.name}.png").write_bytes(drawing.save("png"))
    if json_only:
        click.echo(as_json(found), nl=False)
    else:
        console = Console()
        for table in tables(found):
            console.print(table, "")
    return 0 if all(bar.met is not False for bar in found.bars) else 1
