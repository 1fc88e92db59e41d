"""Adds a part to an existing plugin: finds where its files go and announces it."""

import ast
import tomllib
from pathlib import Path
from textwrap import indent

from kvfw.core.registry.hooks import GROUP
from kvfw.errors import RequestError
from kvfw.scaffold.kinds import Blueprint
from kvfw.scaffold.render import part_files
from kvfw.scaffold.write import check_absent


def addition(project: Path, name: str, blueprint: Blueprint) -> tuple[dict[str, str], str | None]:
    """The texts to write, by path inside the project, and what the user must do by hand, if anything.

    Raises:
        RequestError: the folder is no plugin, or has a module or test of that name.
    """
    package, announcer = find_host(project)
    code, test = announcer.parent / f"{name}.py", project / "tests" / f"test_{name}.py"
    check_absent(code)
    check_absent(test)
    code_text, test_text, announcement = part_files(name, blueprint, f"{package}.{name}")
    # Bytes that are not UTF-8 become characters that no parser accepts.
    changed = with_announcement(announcer.read_bytes().decode(errors="surrogateescape"), announcement)
    texts = {code: code_text, test: test_text} | ({announcer: changed} if changed is not None else {})
    by_hand = f"{announcer} is left as it is. Add this to what its kvfw_parts returns:\n{announcement}"
    inside = {path.relative_to(project).as_posix(): text for path, text in texts.items()}
    return inside, by_hand if changed is None else None


def find_host(project: Path) -> tuple[str, Path]:
    """A project's package and the file that announces its parts. Raises RequestError if the folder is no plugin."""
    modules: list[str] = []
    try:
        declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        modules = [value.partition(":")[0] for value in declared["project"]["entry-points"][GROUP].values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # missing or malformed: no entry point is declared
    for module, base in ((module, base) for module in modules for base in (project / "src", project)):
        place, outer = base.joinpath(*module.split(".")), module.rpartition(".")[0]
        if (place / "__init__.py").is_file():
            return module, place / "__init__.py"
        if outer and place.with_suffix(".py").is_file():
            return outer, place.with_suffix(".py")
    raise RequestError(
        f"{project} is no plugin: --into takes a folder whose pyproject.toml names a package of that folder under "
        f"[project.entry-points.{GROUP}]. Leave --into out to write a new plugin"
    )


def with_announcement(source: str, announcement: str) -> str | None:
    """A module's source with one more part at the start of the list that its ``kvfw_parts`` returns.

    None if that is unsafe: the function does not return one literal list or tuple, or the module does not import the
    names that the announcement uses.
    """
    before = _returned(source)
    if before is None:
        return None
    lines = source.encode().split(b"\n")  # syntax trees count columns in bytes
    line, start = lines[before.lineno - 1], before.col_offset + 1
    margin = line[: len(line) - len(line.lstrip())].decode()
    tail = line[start:].decode()
    if before.lineno == before.end_lineno:  # on one line: split into one line per part
        parts = (ast.get_source_segment(source, part) for part in before.elts)
        closing = line[(before.end_col_offset or 0) - 1 :].decode()
        tail = "".join(f"\n{margin}    {part}," for part in parts) + f"\n{margin}{closing}"
    lines[before.lineno - 1] = line[:start] + f"\n{indent(announcement, f'{margin}    ')}{tail}".encode()
    changed = b"\n".join(lines).decode()
    after = _returned(changed)
    # Even if the source was misread (a tuple without brackets, for example), nothing else may change.
    kept = after is not None and [*map(ast.dump, after.elts[1:])] == [*map(ast.dump, before.elts)]
    return changed if kept else None


def _returned(source: str) -> ast.List | ast.Tuple | None:
    """The literal list or tuple that ``kvfw_parts`` returns; None if it returns anything else."""
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
