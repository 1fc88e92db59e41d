"""kvfw: KV-cache compression methods as compositions of named parts.

Importing this package imports no torch: every name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfw.core.hookspecs import hookimpl
    from kvfw.core.interfaces import Allocator, Merger, Scorer, Selector, Space
    from kvfw.core.metric import Evidence, Metric, MetricPart, Missing
    from kvfw.core.observation import Needs, Observation
    from kvfw.core.options import Method, Part, PartOption
    from kvfw.core.parts import Kind, PartSpec
    from kvfw.core.records import MetricInfo
    from kvfw.core.rope import Rope
    from kvfw.core.spec import Composition, parse
    from kvfw.core.state import KVState
    from kvfw.core.task import Prompt, Task, Trial
    from kvfw.errors import KvfwError, RequestError, RunError
    from kvfw.model.attach import attach
    from kvfw.model.load import LoadedModel, load_model
    from kvfw.runner.config import EvalConfig
    from kvfw.runner.evaluate import Evaluation, evaluate

__version__ = "0.1.0"

_HOMES = {
    "kvfw.core.hookspecs": ("hookimpl",),
    "kvfw.core.interfaces": ("Allocator", "Merger", "Scorer", "Selector", "Space"),
    "kvfw.core.metric": ("Evidence", "Metric", "MetricPart", "Missing"),
    "kvfw.core.observation": ("Needs", "Observation"),
    "kvfw.core.options": ("Method", "Part", "PartOption"),
    "kvfw.core.parts": ("Kind", "PartSpec"),
    "kvfw.core.records": ("MetricInfo",),
    "kvfw.core.rope": ("Rope",),
    "kvfw.core.spec": ("Composition", "parse"),
    "kvfw.core.state": ("KVState",),
    "kvfw.core.task": ("Prompt", "Task", "Trial"),
    "kvfw.errors": ("KvfwError", "RequestError", "RunError"),
    "kvfw.model.attach": ("attach",),
    "kvfw.model.load": ("LoadedModel", "load_model"),
    "kvfw.runner.config": ("EvalConfig",),
    "kvfw.runner.evaluate": ("Evaluation", "evaluate"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocator",
    "Composition",
    "EvalConfig",
    "Evaluation",
    "Evidence",
    "KVState",
    "Kind",
    "KvfwError",
    "LoadedModel",
    "Merger",
    "Method",
    "Metric",
    "MetricInfo",
    "MetricPart",
    "Missing",
    "Needs",
    "Observation",
    "Part",
    "PartOption",
    "PartSpec",
    "Prompt",
    "RequestError",
    "Rope",
    "RunError",
    "Scorer",
    "Selector",
    "Space",
    "Task",
    "Trial",
    "attach",
    "evaluate",
    "hookimpl",
    "load_model",
    "parse",
]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kvfw' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
