"""``kvfw new``."""

import shlex
from pathlib import Path

import click

from kvfw.errors import OptionError


@click.command("new")
@click.argument("name")
@click.option(
    "--kind",
    required=True,
    help="scorer, selector, merger, space, allocator, refiner, codec, stage, metric, task or method.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to create the plugin in.  [default: the current one]",
)
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Add the part to the plugin in this folder instead."
)
def command(name: str, kind: str, out: Path | None, into: Path | None) -> int:
    """Write a plugin package kvfw-NAME with a working part to start from, and its tests."""
    from kvfw.core.registry.registry import default_registry
    from kvfw.scaffold.into import addition
    from kvfw.scaffold.kinds import blueprint
    from kvfw.scaffold.names import check_free, check_name
    from kvfw.scaffold.render import files, filled
    from kvfw.scaffold.write import check_absent, write_files

    if out is not None and into is not None:
        raise OptionError("--out says where a new plugin goes, --into which one gets another part; give one of them")
    plan = blueprint(kind)
    check_name(name)
    check_free(name, default_registry(), new_package=into is None)
    if into is None:
        folder, module = (out or Path()) / f"kvfw-{name}", plan.kind.value
        check_absent(folder)
        texts, by_hand = files(name, plan), None
    else:
        folder, module = into, name
        texts, by_hand = addition(into, name, plan)
    write_files(folder, texts)
    click.echo("\n  ".join([f"{folder}: a plugin with a {plan.kind} {name}", *texts]))
    if by_hand is not None:
        click.echo(by_hand)
    # With ./ in front, pip cannot take the folder for a distribution's name.
    place = str(folder) if folder.is_absolute() else f"./{folder.as_posix()}"
    facts = {"code": next(path for path in texts if path.endswith(f"/{module}.py")), "folder": shlex.quote(place)}
    facts |= {"install": shlex.quote(f"{place}[dev]"), "name": name, "try_it": plan.arguments(name)}
    click.echo(filled("common/next.txt.j2", **facts), nl=False)
    return 0
