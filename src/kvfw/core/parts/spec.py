"""The kinds of parts, and the light record that announces a part."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from kvfw.errors import RequestError


class Kind(StrEnum):
    """The kinds of parts the registry knows."""

    SCORER = "scorer"
    SELECTOR = "selector"
    MERGER = "merger"
    SPACE = "space"
    ALLOCATOR = "allocator"
    REFINER = "refiner"
    CODEC = "codec"
    STAGE = "stage"
    METHOD = "method"
    TASK = "task"
    METRIC = "metric"
    MODEL = "model"


#: Kinds that can be a stage of a composition. They share one namespace.
STAGE_KINDS = (Kind.STAGE, Kind.METHOD, Kind.SCORER)
#: How to use a part that is not itself a stage.
WRITTEN: Final = {
    Kind.SELECTOR: "select(scorer=...,selector={})",
    Kind.MERGER: "merge(merger={})",
    Kind.SPACE: "merge(merger=...,space={})",
    Kind.ALLOCATOR: "snapkv@{}",
    Kind.REFINER: "snapkv|{}",
    Kind.CODEC: "snapkv|{}",
    Kind.TASK: '--task "{}"',
    Kind.METRIC: "every run measures it",
    Kind.MODEL: "--model {}",
}
#: The composition text of the uncompressed baseline; no part may have this name.
BASELINE: Final = "full"

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
#: Model names may have dots and dashes, because they never occur inside a composition.
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class PartSpec:
    """Announces a part without importing it.

    Args:
        kind: kind of the part.
        name: what users write: lower-case letters, digits and ``_``; a model's may have ``.`` and ``-`` too.
        target: ``"package.module:Name"``, imported only when the part is used: a subclass of ``kvfw.Part``, or for a
            model a function that takes the model's name and returns its folder.
        summary: one line for listings.
        facts: further facts for listings, shown unchanged.
        provider: name of the plugin the part comes from; filled in by the registry.
    """

    kind: Kind
    name: str
    target: str
    summary: str
    facts: Mapping[str, str] = field(default_factory=dict)
    provider: str = "kvfw"

    def load(self) -> object:
        """Imports and returns the object behind ``target``.

        Raises:
            RequestError: importing the module raises anything, or it has no such name.
        """
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (Exception, SystemExit) as error:
            # An import error's message is clear by itself; 'division by zero' alone says little.
            reason = error if isinstance(error, ImportError | AttributeError) else repr(error)
            raise RequestError(f"{self.kind} {self.name!r} of {self.provider} cannot be imported: {reason}") from error


def fault(spec: object) -> str | None:
    """What is wrong with a plugin's announcement, in one line; None for a valid :class:`PartSpec`.

    Only checks that the target's outermost package exists, since checking deeper would import it.
    """
    if not isinstance(spec, PartSpec):
        return f"announces {_short(spec)} where a PartSpec is expected"
    if spec.kind not in tuple(Kind):
        return f"part {_short(spec.name)} has the unknown kind {_short(spec.kind)}; kinds: {', '.join(Kind)}"
    what = f"{spec.kind} {_short(spec.name)}"
    is_model = spec.kind == Kind.MODEL
    if not isinstance(spec.name, str) or not (_MODEL_NAME if is_model else _NAME).fullmatch(spec.name):
        allowed = "letters, digits, '.', '_' and '-'" if is_model else "letters, digits and '_', no digit first"
        return f"{what} has a name that cannot be written; use lower-case {allowed}"
    if spec.name == BASELINE and spec.kind in STAGE_KINDS:
        return f"{what}: that name stands for the uncompressed baseline; choose another"
    if not isinstance(spec.target, str) or not _TARGET.fullmatch(spec.target):
        return f"{what} has the target {_short(spec.target)}; it must read 'package.module:Name'"
    if not isinstance(spec.summary, str) or not spec.summary.strip() or "\n" in spec.summary:
        return f"{what} has no summary of one line"
    if not isinstance(spec.facts, Mapping) or not all(
        isinstance(text, str) for pair in spec.facts.items() for text in pair
    ):
        return f"{what} has facts that are not texts by name"
    package = spec.target.partition(":")[0].partition(".")[0]
    try:
        found = find_spec(package) is not None
    except (ImportError, ValueError):  # ValueError: a module that was put into sys.modules by hand
        found = False
    return None if found else f"{what} has its code in {spec.target!r}, but no package {package!r} is installed"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
