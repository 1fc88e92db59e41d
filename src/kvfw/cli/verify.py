"""``kvfw verify``."""

import json

import click

from kvfw.core.parts.spec import Kind


@click.command("verify")
@click.argument("name")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="Only the part of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(name: str, kind: str | None, as_json: bool) -> int:
    """Check that a part keeps its contract: NAME, or "NAME(option=value)".

    Prints one line per property, and its progress on standard error. Exit code 0: all hold; 1: one does not; 2: there
    is no such part.
    """
    from kvfw.core.registry.registry import default_registry
    from kvfw.verify.findings.lookup import named

    wanted, registry = None if kind is None else Kind(kind), default_registry()
    named(name, wanted, registry)  # a wrong name fails before torch is imported
    from rich.console import Console
    from rich.markup import escape

    from kvfw.verify.parts import verify_part

    console = Console(stderr=True)
    with console.status("verifying") as status:

        def shown(what: str, number: int, count: int) -> None:
            line = escape(f"[{number}/{count}] {what}")
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line, highlight=False, soft_wrap=True)

        report = verify_part(name, kind=wanted, registry=registry, progress=shown)
    click.echo(json.dumps(report.data(), indent=2, ensure_ascii=False) if as_json else str(report))
    return 0 if report.passed else 1
