"""``kvfw list``."""

import click

from kvfw.core.parts.spec import Kind
from kvfw.core.registry.plugins import OWN, VARIABLE
from kvfw.errors import OptionError

PLURALS = {f"{kind.value}s": kind for kind in Kind}


@click.command("list")
@click.argument("kind", required=False)
def command(kind: str | None) -> int:
    """List parts of one KIND, or all.

    KIND is methods, scorers, selectors, mergers, spaces, allocators, refiners, codecs, stages, tasks, metrics, models
    or plugins.
    """
    if kind == "plugins":
        _print_plugins()
        return 0
    from kvfw.core.registry.registry import default_registry

    registry = default_registry()
    for found in list(Kind) if kind is None else [_kind(kind)]:
        rows = [(spec.name, spec.summary, spec.provider) for spec in registry.of_kind(found)]
        if found is Kind.METHOD:
            # A scorer's bare name is a method too, and users look for snapkv here.
            rows += [(s.name, f"{s.summary} (scorer, with top-k)", s.provider) for s in registry.of_kind(Kind.SCORER)]
        _print_kind(found, rows, title=kind is None)
    return 0


def _kind(text: str) -> Kind:
    name = text.lower()
    if name in PLURALS:
        return PLURALS[name]
    if name in {kind.value for kind in Kind}:
        return Kind(name)
    raise OptionError(f"unknown kind {text!r}; known: {', '.join([*PLURALS, 'plugins'])}")


def _print_kind(kind: Kind, rows: list[tuple[str, str, str]], *, title: bool) -> None:
    if title:
        click.echo(f"{kind.value}s")
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, summary, provider in rows:
        origin = "" if provider == "kvfw" else f"  [{provider}]"
        click.echo(f"{'  ' if title else ''}{name:<{width}}  {summary}{origin}")
    if title:
        click.echo()


def _print_plugins() -> None:
    """Prints a table of plugins and their problems, without the warnings that other commands give."""
    from kvfw.core.registry.registry import collect

    registry = collect()
    rows = [("plugin", "distribution", "version", "parts", "state")]
    for plugin in registry.plugins:
        mine = [spec for spec in plugin.specs if spec in registry.specs.values()]
        parts = f"{len(mine)} built in" if plugin.name == OWN else ", ".join(f"{s.kind} {s.name}" for s in mine)
        state = "problem" if plugin.problems else "ok" if plugin.wanted else f"not loaded: left out of {VARIABLE}"
        rows.append((plugin.name, plugin.distribution or "-", plugin.version or "-", parts or "none", state))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    for row in rows:
        click.echo("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]))
    if registry.problems:
        click.echo("\nproblems")
    for problem in registry.problems:
        click.echo(f"  {problem}")
