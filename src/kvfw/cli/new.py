"""``kvfw new``."""

import shlex
from pathlib import Path

import click

from kvfw.errors import OptionError


@click.command("new")
@click.argument("name")
@click.option("--kind", required=True, help="scorer, selector, merger, space, stage, metric, task or method.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where.  [default: this folder]")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Add the part to the plugin in this folder instead."
)
def command(name: str, kind: str, out: Path | None, into: Path | None) -> int:
    """Write a plugin package kvfw-NAME with a working part to start from, and its tests."""
    from kvfw.core.registry.registry import default_registry
    from kvfw.scaffold.into import add_part
    from kvfw.scaffold.kinds import blueprint
    from kvfw.scaffold.names import check_free, check_name
    from kvfw.scaffold.render import files, folder_name
    from kvfw.scaffold.write import write_folder

    if out is not None and into is not None:
        raise OptionError("--out says where a new plugin goes, --into which one gets another part; give one of them")
    plan = blueprint(kind)
    check_name(name)
    check_free(name, default_registry(), new_package=into is None)
    target = into if into is not None else (out or Path()) / folder_name(name)
    if into is not None:
        written, by_hand = add_part(into, name, plan)
        code = written[0]
        click.echo(f"{target}: now with a {plan.kind} {name}")
    else:
        texts = files(name, plan)
        write_folder(target, texts)
        written, by_hand, code = list(texts), None, f"src/kvfw_{name}/{plan.kind}.py"
        click.echo(f"{target}: a plugin with a {plan.kind} {name}")
    for path in written:
        click.echo(f"  {path}")
    if by_hand is not None:
        click.echo(by_hand)
    # With ./ in front, pip cannot take the folder for a distribution's name.
    place = str(target) if target.is_absolute() else f"./{target.as_posix()}"
    click.echo(f"Your formula goes into {code}. Next:")
    click.echo(f"  pip install -e {shlex.quote(f'{place}[dev]')}")
    click.echo(f"  pytest {shlex.quote(place)}")
    click.echo(f"  kvfw verify {name}")
    click.echo(f"  kvfw eval {plan.arguments(name)}")
    return 0
