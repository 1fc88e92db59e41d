"""Finds the plugin that a part is to be added to, and announces the part there."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from kvfw.core.registry.hooks import GROUP
from kvfw.errors import RequestError
from kvfw.scaffold.kinds import Blueprint
from kvfw.scaffold.render import part_files
from kvfw.scaffold.write import check_free_path, write_into


@dataclass(frozen=True)
class Host:
    """A plugin's sources.

    Args:
        package: its dotted name.
        folder: of the package.
        announcer: file of the module that announces the parts.
    """

    package: str
    folder: Path
    announcer: Path


def find_host(project: Path) -> Host:
    """The package that a project's entry point names, in ``src`` or beside ``pyproject.toml``.

    Raises:
        RequestError: the folder is no plugin.
    """
    modules: list[str] = []
    try:
        declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        modules = [value.partition(":")[0] for value in declared["project"]["entry-points"][GROUP].values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # whatever is missing or malformed, no entry point is declared
    for path, module in ((base.joinpath(*m.split(".")), m) for m in modules for base in (project / "src", project)):
        if (path / "__init__.py").is_file():
            return Host(module, path, path / "__init__.py")
        if path.with_suffix(".py").is_file() and (path.parent / "__init__.py").is_file():
            return Host(module.rpartition(".")[0], path.parent, path.with_suffix(".py"))
    raise RequestError(
        f"{project} is no plugin: --into takes a folder whose pyproject.toml names a package of that folder under "
        f"[project.entry-points.{GROUP}]. Leave --into out to write a new plugin"
    )


def add_part(project: Path, name: str, blueprint: Blueprint) -> tuple[list[str], str | None]:
    """Writes a part and its test into a plugin, and announces it there where that can be done safely.

    Returns:
        paths of what was written, inside the project, the part's code first; and what is left to do by hand, if any.

    Raises:
        RequestError: the folder is no plugin, or has a module or a test of that name.
        RunError: the disk refuses.
    """
    host = find_host(project)
    code, test = host.folder / f"{name}.py", project / "tests" / f"test_{name}.py"
    check_free_path(code)
    check_free_path(test)
    code_text, test_text, announcement = part_files(name, blueprint, f"{host.package}.{name}")
    # What is no UTF-8 becomes something that no parser takes.
    changed = with_announcement(host.announcer.read_bytes().decode(errors="surrogateescape"), announcement)
    texts = {code: code_text, test: test_text} | ({host.announcer: changed} if changed is not None else {})
    write_into(project, texts)
    by_hand = f"{host.announcer} is left as it is; add this to what its kvfw_parts returns:\n{announcement.rstrip()}"
    return [path.relative_to(project).as_posix() for path in texts], by_hand if changed is None else None


def with_announcement(source: str, announcement: str) -> str | None:
    """An announcing module's source with one more part at the head of the list that ``kvfw_parts`` returns.

    None where that cannot be done safely: the function does not return one written-out list or tuple, or the module
    has not imported the names that the announcement uses.
    """
    before = _returned(source)
    lines = source.encode().split(b"\n")  # syntax trees count columns in bytes
    if before is None or lines[before.lineno - 1][before.col_offset : before.col_offset + 1] not in (b"[", b"("):
        return None
    line, start, end = lines[before.lineno - 1], before.col_offset + 1, (before.end_col_offset or 0) - 1
    margin = line[: len(line) - len(line.lstrip())].decode()
    tail = line[start:].decode()
    if before.lineno == before.end_lineno:
        parts = (ast.get_source_segment(source, part) for part in before.elts)
        tail = "".join(f"\n{margin}    {part}," for part in parts) + f"\n{margin}{line[end:].decode()}"
    new = indent(announcement.rstrip(), f"{margin}    ")
    lines[before.lineno - 1] = line[:start] + f"\n{new}{tail}".encode()
    changed = b"\n".join(lines).decode()
    after = _returned(changed)
    # Where the text was read wrongly, nothing is changed.
    kept = after is not None and [*map(ast.dump, after.elts[1:])] == [*map(ast.dump, before.elts)]
    return changed if kept else None


def _returned(source: str) -> ast.List | ast.Tuple | None:
    """What ``kvfw_parts`` returns, if that stands there part by part; None where it does not."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "kvfw"]
    names = {alias.name for node in imports for alias in node.names if alias.asname is None}
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "kvfw_parts"]
    returns = [node.value for hook in hooks for node in ast.walk(hook) if isinstance(node, ast.Return)]
    match returns:
        case [ast.List() | ast.Tuple() as written] if {"Kind", "PartSpec"} <= names:
            return written
    return None
