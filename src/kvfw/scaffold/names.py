"""Checks and derives the names of a new plugin."""

import keyword
import re
from importlib.metadata import entry_points
from importlib.util import find_spec

from kvfw.core.parts.spec import BASELINE
from kvfw.core.registry.hooks import GROUP
from kvfw.core.registry.registry import Registry
from kvfw.errors import RequestError

#: Accepted in compositions and by modules and distributions alike.
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MAX_CHARS = 40
#: Words with another meaning in place of a part's name: the baseline's row, values of options, kvfw itself.
RESERVED = frozenset({BASELINE, "none", "true", "false", "kvfw"})


def check_name(name: str) -> None:
    """Raises RequestError unless ``name`` is a valid part name.

    That is lower-case letters, digits and single underscores, at most 40 characters, and no reserved word.
    """
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:MAX_CHARS].rstrip("_")
        way_out = f"; for example {better}" if _NAME.fullmatch(better) else ""
        raise RequestError(
            f"{name!r} is no name for a part: use lower-case letters, digits and single underscores between them, "
            f"starting with a letter{way_out}"
        )
    if len(name) > MAX_CHARS:
        raise RequestError(f"{name!r} has {len(name)} characters; a part's name has at most {MAX_CHARS}")
    if keyword.iskeyword(name) or name in RESERVED:
        meaning = "a word of Python" if keyword.iskeyword(name) else "a word with a meaning of its own in kvfw"
        raise RequestError(f"{name!r} is {meaning}; choose another, such as {name}_part")


def check_free(name: str, registry: Registry, *, new_package: bool = True) -> None:
    """Raises RequestError if a part of any kind, or with ``new_package`` a plugin or Python package, has the name."""
    for spec in (*registry.specs.values(), *(spec for claims in registry.contested.values() for spec in claims)):
        # Of any kind, because `kvfw show` and `kvfw verify` take a name alone.
        if spec.name == name:
            raise RequestError(f"the name {name!r} is taken by a {spec.kind} of {spec.provider}; choose another")
    for entry in entry_points(group=GROUP) if new_package else ():
        if entry.name == name:
            raise RequestError(f"the name {name!r} is taken by an installed plugin ({entry.value}); choose another")
    if new_package and find_spec(package_name(name)) is not None:
        raise RequestError(
            f"a Python package {package_name(name)} is installed already; choose another name, or uninstall it"
        )


def package_name(name: str) -> str:
    """The name of the plugin's Python package."""
    return f"kvfw_{name}"


def class_name(name: str, kind: str) -> str:
    """The name of the part's class: ``key_norm`` and ``scorer`` give ``KeyNormScorer``.

    The kind in it keeps it from shadowing names that the generated file imports.
    """
    words = [word.capitalize() for word in name.split("_")]
    if len(words) == 1 or words[-1] != kind.capitalize():
        words.append(kind.capitalize())
    return "".join(words)
