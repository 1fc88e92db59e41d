"""``kvfw show``."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvfw.core.compress.describe import PartFacts


@click.command("show")
@click.argument("name")
def command(name: str) -> int:
    """Show a part: formula, paper, options and needs."""
    from kvfw.core.registry.registry import default_registry

    registry = default_registry()
    found = registry.named(name)
    from kvfw.core.compress.describe import describe

    click.echo("\n\n".join(_text(describe(spec, registry)) for spec in found))
    return 0


def _text(facts: "PartFacts") -> str:
    spec = facts.spec
    blocks = [f"{spec.name}  ({spec.kind}, {spec.provider})\n{spec.summary}"]
    if facts.doc:
        blocks.append(facts.doc)
    if facts.notes:
        blocks.append("\n".join(f"{key}: {value}" for key, value in facts.notes))
    if facts.recipe is not None:
        blocks.append(f"Stands for\n  {facts.recipe}")
    if facts.options:
        blocks.append("\n  ".join(["Options", *map(str, facts.options)]))
    elif facts.doc:
        blocks.append("No options.")
    if facts.needs is not None:
        blocks.append("\n  ".join(["Needs", *(facts.needs or ("nothing",))]))
    if facts.usage:
        blocks.append("\n  ".join(["Write", *facts.usage]))
    return "\n\n".join(blocks)
