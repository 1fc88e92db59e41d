"""The files of a new part, as texts. Pure: nothing is written here."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from kvfw.scaffold.kinds import Blueprint
from kvfw.scaffold.names import class_name, package_name
from kvfw.scaffold.requirements import imported_ranges, own_range, ranges

LINE_CHARS = 120


def folder_name(name: str) -> str:
    """The plugin's folder, which is also the name of its distribution."""
    return f"kvfw-{name}"


def files(name: str, blueprint: Blueprint) -> dict[str, str]:
    """A whole plugin: text by path (``/`` between folders) inside its folder.

    Args:
        name: of the part; must have passed :func:`kvfw.scaffold.names.check_name`.
        blueprint: what to bring.
    """
    package, kind = package_name(name), blueprint.kind.value
    part, test, announcement = part_files(name, blueprint, f"{package}.{kind}")
    facts = {
        "name": name,
        "kind": kind,
        "package": package,
        "summary": blueprint.summary,
        "try_it": blueprint.arguments(name),
        "announcement": announcement,
        "requirements": sorted([*imported_ranges(part), own_range()]),
        "dev_requirements": ranges(("mypy", "pytest", "ruff")),
    }
    return {
        "pyproject.toml": text("common/pyproject.toml.j2", facts),
        "README.md": text("common/README.md.j2", facts),
        f"src/{package}/__init__.py": text("common/init.py.j2", facts),
        f"src/{package}/{kind}.py": part,
        f"src/{package}/py.typed": "",
        f"tests/test_{name}.py": test,
    }


def part_files(name: str, blueprint: Blueprint, module: str) -> tuple[str, str, str]:
    """A part that is to stand in ``module``: its code, its test, and the lines that announce it."""
    kind = blueprint.kind.value
    cls = class_name(name, kind)
    line = f"from {module} import {cls}"
    facts = {
        "name": name,
        "kind": kind,
        "title": name.replace("_", " ").capitalize(),
        "module": module,
        "cls": cls,
        "own_import": line if len(line) <= LINE_CHARS else f"from {module} import (\n    {cls},\n)",
        "summary": blueprint.summary,
    }
    return text(f"{kind}/part.py.j2", facts), text(f"{kind}/test.py.j2", facts), text("common/spec.py.j2", facts)


def text(template: str, facts: dict[str, object]) -> str:
    """A template filled in."""
    environment = Environment(
        loader=PackageLoader("kvfw.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # Python, TOML and Markdown, not HTML
    )
    return environment.get_template(template).render(facts)
