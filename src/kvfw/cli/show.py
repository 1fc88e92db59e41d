"""``kvfw show``."""

import inspect
from typing import TYPE_CHECKING

import click

from kvfw.errors import UnknownNameError

if TYPE_CHECKING:
    from kvfw.core.observation import Needs


@click.command("show")
@click.argument("name")
def command(name: str) -> int:
    """Show a part: formula, paper, options and needs."""
    from kvfw.core.registry import default_registry, unknown

    registry = default_registry()
    found = [spec for spec in registry.specs.values() if spec.name == name]
    if not found:
        raise UnknownNameError(unknown("part", name, {spec.name for spec in registry.specs.values()}))
    from kvfw.core.parts import Kind
    from kvfw.core.spec import part_class

    for spec in found:
        click.echo(f"{spec.name}  ({spec.kind}, {spec.provider})\n{spec.summary}\n")
        if spec.kind is Kind.MODEL:
            for key, value in spec.facts.items():
                click.echo(f"{key}: {value}")
            continue
        cls = part_class(spec)
        click.echo(inspect.getdoc(cls) or "")
        recipe = getattr(cls, "recipe", None)
        if recipe is not None:
            click.echo(f"\nStands for\n  {recipe}")
        _print_options(cls)
        _print_needs(spec.name, spec.kind)
    return 0


def _print_options(cls: type) -> None:
    from kvfw.core.options import Part, default_text, part_option

    assert issubclass(cls, Part)
    if not cls.model_fields:
        click.echo("\nNo options.")
        return
    click.echo("\nOptions")
    for key, info in cls.model_fields.items():
        mark = part_option(info)
        what = f"a {mark.kind}. " if mark is not None else ""
        rules = ", ".join(_rule(mark) for mark in info.metadata if _rule(mark))
        text = what + (info.description or "") + (f"  ({rules})" if rules else "")
        click.echo(f"  {key}={default_text(info)}  {text}".rstrip())


def _rule(mark: object) -> str:
    """A bound of an option, as a reader writes it."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return next((f"{sign} {getattr(mark, name)}" for name, sign in signs.items() if hasattr(mark, name)), "")


def _print_needs(name: str, kind: str) -> None:
    from kvfw.core.parts import STAGE_KINDS
    from kvfw.core.spec import build_stage
    from kvfw.errors import SpecError

    if kind not in STAGE_KINDS:
        return
    try:
        stage = build_stage(name)
    except SpecError:
        return  # a generic form has required options, so it needs nothing by itself
    needs = getattr(stage, "needs", None)
    if needs is not None:
        click.echo("\nNeeds\n  " + ("\n  ".join(_needs_lines(needs)) or "nothing"))


def _needs_lines(needs: "Needs") -> list[str]:
    lines = [f"the last {needs.queries} queries"] if needs.queries else []
    for distance in sorted(needs.column_sums):
        where = f" from at least {distance} tokens away" if distance else ""
        lines.append(f"exact column sums of attention{where}")
    return lines + (["lexical features of the prompt's text"] if needs.lexical else [])
