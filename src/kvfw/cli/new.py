"""``kvfw new``."""

import shlex
from pathlib import Path

import click


@click.command("new")
@click.argument("name")
@click.option("--kind", required=True, help="scorer, selector, merger, space, metric, task or method.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), metavar="DIR", help="Where.  [default: this folder]"
)
def command(name: str, kind: str, out: Path) -> int:
    """Write a plugin package kvfw-NAME with a working part to start from, and its tests."""
    from kvfw.core.registry.registry import default_registry
    from kvfw.scaffold.kinds import blueprint
    from kvfw.scaffold.names import check_free, check_name
    from kvfw.scaffold.render import eval_arguments, files, folder_name
    from kvfw.scaffold.write import check_place, write_folder

    plan = blueprint(kind)
    check_name(name)
    check_free(name, default_registry())
    target = check_place(out, folder_name(name))
    texts = files(name, plan)
    write_folder(target, texts)
    click.echo(f"{target}: a plugin with a {plan.kind} {name}")
    for path in texts:
        click.echo(f"  {path}")
    # With ./ in front, pip cannot take the folder for a distribution's name.
    place = str(target) if target.is_absolute() else f"./{target.as_posix()}"
    click.echo(f"Your formula goes into src/kvfw_{name}/{plan.kind}.py. Next:")
    click.echo(f"  pip install -e {shlex.quote(f'{place}[dev]')}")
    click.echo(f"  pytest {shlex.quote(place)}")
    click.echo(f"  kvfw verify {name}")
    click.echo(f"  kvfw eval {eval_arguments(name, plan)}")
    return 0
