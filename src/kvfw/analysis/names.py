"""Names of rows: a composition, and the run it comes from where several runs hold the same row."""

import re
from typing import Final

from kvfw.core.contracts.records import FULL

LABELLED: Final = re.compile(r"^(?P<method>\S+) \[(?P<run>.*)\]$", re.DOTALL)
"""Canonical compositions hold no space, so a label cannot be mistaken for a part of one."""


def labelled(compose: str, run: str) -> str:
    """``snapkv [runs/a]``: the composition as a row of that run."""
    return f"{compose} [{run}]"


def method_of(compose: str) -> str:
    """The composition without the label of its run."""
    found = LABELLED.match(compose)
    return found["method"] if found else compose


def is_full(compose: str) -> bool:
    """Whether this is the uncompressed baseline, of whatever run."""
    return method_of(compose) == FULL


def visible(text: str) -> str:
    """The text with control characters and invisible or line-breaking ones written as ``\\u`` escapes.

    Line feeds stay; carriage returns become line feeds, tabs become spaces.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
    return "".join(
        character if character == "\n" or character.isprintable() else f"\\u{ord(character):04x}" for character in plain
    )
