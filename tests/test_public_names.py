"""The front door: every public name is there, says so to type checkers, and costs nothing before it is used."""

import ast
import inspect
from pathlib import Path

import kvfw


def test_every_public_name_can_be_had_and_has_a_home() -> None:
    assert sorted(kvfw.__all__) == kvfw.__all__
    assert set(kvfw.__all__) == set(kvfw._HOME_OF)
    for name in kvfw.__all__:
        assert getattr(kvfw, name) is not None
        assert name in dir(kvfw)


def test_type_checkers_are_told_the_same_homes() -> None:
    tree = ast.parse(Path(inspect.getfile(kvfw)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == kvfw._HOME_OF
