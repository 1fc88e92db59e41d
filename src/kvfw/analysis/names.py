"""Names of rows: a composition, labelled with its run if several runs hold the same row."""

import re
from typing import Final

from kvfw.core.contracts.records import FULL

LABELLED: Final = re.compile(r"^(?P<method>\S+) \[(?P<run>.*)\]$", re.DOTALL)
"""Canonical compositions contain no space, so a label cannot be mistaken for part of one."""


def labelled(compose: str, run: str) -> str:
    """``snapkv [runs/a]``: the composition as a row of that run."""
    return f"{compose} [{run}]"


def method_of(compose: str) -> str:
    """The composition without the label of its run."""
    found = LABELLED.match(compose)
    return found["method"] if found else compose


def is_full(compose: str) -> bool:
    """Whether this is the uncompressed baseline of any run."""
    return method_of(compose) == FULL


def visible(text: str) -> str:
    """The text with unprintable characters as ``\\u`` escapes. Carriage returns become line feeds, tabs spaces."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
    return "".join(c if c == "\n" or c.isprintable() else f"\\u{ord(c):04x}" for c in plain)
