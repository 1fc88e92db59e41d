"""``kvfw list``."""

import click

from kvfw.core.parts import Kind
from kvfw.errors import OptionError

PLURALS = {f"{kind.value}s": kind for kind in Kind}


@click.command("list")
@click.argument("kind", required=False)
def command(kind: str | None) -> int:
    """List parts: methods, scorers, selectors, mergers, spaces, stages, tasks, metrics, models or plugins."""
    from kvfw.core.registry import default_registry

    registry = default_registry()
    if kind == "plugins":
        providers = sorted({spec.provider for spec in registry.specs.values()})
        for provider in providers:
            count = sum(spec.provider == provider for spec in registry.specs.values())
            click.echo(f"{provider}  {count} parts")
    else:
        kinds = list(Kind) if kind is None else [_kind(kind)]
        for found in kinds:
            rows = [(spec.name, spec.summary, spec.provider) for spec in registry.of_kind(found)]
            if found is Kind.METHOD:
                # A scorer's bare name is a method too; who looks for snapkv looks here.
                rows += [
                    (s.name, f"{s.summary} (scorer, with top-k)", s.provider) for s in registry.of_kind(Kind.SCORER)
                ]
            _print_kind(found, rows, title=kind is None)
    for problem in registry.problems:
        click.echo(f"warning: {problem}", err=True)
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
