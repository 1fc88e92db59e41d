"""The files of a new plugin, as texts. Pure: nothing is written here."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from kvfw.scaffold.kinds import Blueprint
from kvfw.scaffold.names import class_name, package_name
from kvfw.scaffold.requirements import own_range, ranges


def folder_name(name: str) -> str:
    """The plugin's folder, which is also the name of its distribution."""
    return f"kvfw-{name}"


def files(name: str, blueprint: Blueprint) -> dict[str, str]:
    """Text by path (``/`` between folders) inside the plugin's folder.

    Args:
        name: of the part; must have passed :func:`kvfw.scaffold.names.check_name`.
        blueprint: what to bring.
    """
    environment = Environment(
        loader=PackageLoader("kvfw.scaffold"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # Python, TOML and Markdown, not HTML
    )
    kind = blueprint.kind.value
    facts = {
        "name": name,
        "kind": kind,
        "title": name.replace("_", " ").capitalize(),
        "package": package_name(name),
        "cls": class_name(name, kind),
        "summary": blueprint.summary,
        "try_it": eval_arguments(name, blueprint),
        "requirements": sorted([*ranges(blueprint.imports), own_range()]),
        "dev_requirements": ranges(("mypy", "pytest", "ruff")),
    }

    def text(template: str) -> str:
        return environment.get_template(template).render(facts)

    source = f"src/{facts['package']}"
    return {
        "pyproject.toml": text("common/pyproject.toml.j2"),
        "README.md": text("common/README.md.j2"),
        f"{source}/__init__.py": text("common/init.py.j2"),
        f"{source}/{kind}.py": text(f"{kind}/part.py.j2"),
        f"{source}/py.typed": "",
        f"tests/test_{name}.py": text(f"{kind}/test.py.j2"),
    }


def eval_arguments(name: str, blueprint: Blueprint) -> str:
    """What to write after ``kvfw eval`` to use the part."""
    return blueprint.try_it.format(name=name)
