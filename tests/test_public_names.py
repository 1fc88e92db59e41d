"""The front door: every public name is there, says so to type checkers, and costs nothing before it is used."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kvfw

STUB = Path(inspect.getfile(kvfw)).with_suffix(".pyi")


def test_every_public_name_can_be_had_and_has_a_home() -> None:
    assert sorted(kvfw.__all__) == kvfw.__all__
    for name in kvfw.__all__:
        value = getattr(kvfw, name)
        assert value is getattr(sys.modules[kvfw._HOME_OF[name]], name)
        assert name in dir(kvfw)
    assert {"__version__", "__all__"} <= set(dir(kvfw))
    assert len(dir(kvfw)) == len(set(dir(kvfw)))


def test_type_checkers_see_the_names_that_are_there_and_no_others() -> None:
    """A line of any other form would tell one of the two readers something else; each name has one line."""
    told = list[tuple[str, str]]()
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            (alias,) = node.names
            assert alias.asname == alias.name, f"type checkers take {alias.name} for private"
            told.append((alias.name, node.module or ""))
        else:
            assert isinstance(node, ast.AnnAssign | ast.Expr), ast.unparse(node)
    assert len(dict(told)) == len(told)
    assert dict(told) == kvfw._HOME_OF


def test_an_unknown_name_is_an_attribute_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'kvfw' has no attribute 'nothing'"):
        kvfw.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_front_door_imports_no_torch() -> None:
    code = "import sys, kvfw; dir(kvfw); sys.exit(int(any(name in sys.modules for name in ('torch', 'numpy', 'ast'))))"
    subprocess.run([sys.executable, "-c", code], check=True)
