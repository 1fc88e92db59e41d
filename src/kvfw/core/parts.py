"""What a part is: a named, frozen bundle of options, and the light record that announces it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module


class Kind(StrEnum):
    """The kinds of parts the registry knows."""

    SCORER = "scorer"
    SELECTOR = "selector"
    MERGER = "merger"
    SPACE = "space"
    STAGE = "stage"
    METHOD = "method"
    TASK = "task"
    METRIC = "metric"
    MODEL = "model"


#: Kinds whose names may stand as a stage of a composition. They share one namespace.
STAGE_KINDS = (Kind.STAGE, Kind.METHOD, Kind.SCORER)


@dataclass(frozen=True)
class PartSpec:
    """Announces a part without importing it.

    Args:
        kind: what the part is.
        name: what users write, lower case.
        target: ``"package.module:Name"``, imported only when the part is used.
        summary: one line for listings.
        facts: further light facts for listings, shown as they are.
        provider: distribution or plugin the part comes from; filled in by the registry.
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
            ImportError, AttributeError: the plugin that announced the part is broken.
        """
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)
