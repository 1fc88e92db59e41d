"""Renders the files of a new part as texts, without writing them."""

from kvfw.scaffold.kinds import TEMPLATES, Blueprint
from kvfw.scaffold.names import class_name, package_name
from kvfw.scaffold.requirements import imported_ranges, own_range, ranges

LINE_CHARS = 120


def files(name: str, blueprint: Blueprint) -> dict[str, str]:
    """All texts of a new plugin by path inside its folder, with ``/`` between folders.

    ``name``, the part's, must have passed :func:`kvfw.scaffold.names.check_name`.
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
        "pyproject.toml": filled("common/pyproject.toml.j2", **facts),
        "README.md": filled("common/README.md.j2", **facts),
        f"src/{package}/__init__.py": filled("common/init.py.j2", **facts),
        f"src/{package}/{kind}.py": part,
        f"src/{package}/py.typed": "",
        f"tests/test_{name}.py": test,
    }


def part_files(name: str, blueprint: Blueprint, module: str) -> tuple[str, str, str]:
    """The code of a part for ``module``, its test, and the lines that announce it."""
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
    templates = f"{kind}/part.py.j2", f"{kind}/test.py.j2", "common/spec.py.j2"
    part, test, announcement = (filled(template, **facts) for template in templates)
    return part, test, announcement.rstrip()


def filled(template: str, **facts: object) -> str:
    """The rendered text of a template."""
    return TEMPLATES.get_template(template).render(facts)
