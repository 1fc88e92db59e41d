"""kvfw: KV-cache compression methods as compositions of named parts.

Importing this package imports no torch: every name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfw.core.hookspecs import hookimpl
    from kvfw.core.interfaces import Allocator, Merger, Scorer, Selector, Space
    from kvfw.core.metric import DerivedMetric, Engine, Evidence, Measured, Metric, MetricPart, Missing, Response, Value
    from kvfw.core.observation import Needs, Observation, protect
    from kvfw.core.ops.attention import pool_middle, window_attention
    from kvfw.core.ops.clusters import HeadTokens, merge_clusters
    from kvfw.core.ops.topk import rank
    from kvfw.core.options import Method, Part, PartOption, StageForm
    from kvfw.core.parts import Kind, PartSpec
    from kvfw.core.prompting import begun_ids, check_depth, check_grid, decoded, encoded, framed, stable_random
    from kvfw.core.records import MetricInfo, RowKey, RunKey, TrialKey, TrialRecord, vector_of
    from kvfw.core.registry import Registry, default_registry
    from kvfw.core.rope import Rope, rotate, unrotate
    from kvfw.core.spec import Composition, parse
    from kvfw.core.stages import Outcome
    from kvfw.core.state import KVState, exact_state
    from kvfw.core.task import Prompt, Task, Tokenizer, Trial
    from kvfw.errors import (
        KvfwError,
        OptionError,
        PromptError,
        RequestError,
        RunError,
        SpecError,
        UnknownNameError,
        UnsupportedError,
    )
    from kvfw.model.attach import attach
    from kvfw.model.load import LoadedModel, load_model
    from kvfw.model.saved import load_cache, save_cache
    from kvfw.runner.config import EvalConfig
    from kvfw.runner.evaluate import Evaluation, evaluate
    from kvfw.verify.parts import verify_part
    from kvfw.verify.report import VerifyReport

__version__ = "0.1.0"

_HOMES = {
    "kvfw.core.hookspecs": ("hookimpl",),
    "kvfw.core.interfaces": ("Allocator", "Merger", "Scorer", "Selector", "Space"),
    "kvfw.core.metric": (
        "DerivedMetric",
        "Engine",
        "Evidence",
        "Measured",
        "Metric",
        "MetricPart",
        "Missing",
        "Response",
        "Value",
    ),
    "kvfw.core.observation": ("Needs", "Observation", "protect"),
    "kvfw.core.ops.attention": ("pool_middle", "window_attention"),
    "kvfw.core.ops.clusters": ("HeadTokens", "merge_clusters"),
    "kvfw.core.ops.topk": ("rank",),
    "kvfw.core.options": ("Method", "Part", "PartOption", "StageForm"),
    "kvfw.core.parts": ("Kind", "PartSpec"),
    "kvfw.core.prompting": ("begun_ids", "check_depth", "check_grid", "decoded", "encoded", "framed", "stable_random"),
    "kvfw.core.records": ("MetricInfo", "RowKey", "RunKey", "TrialKey", "TrialRecord", "vector_of"),
    "kvfw.core.registry": ("Registry", "default_registry"),
    "kvfw.core.rope": ("Rope", "rotate", "unrotate"),
    "kvfw.core.spec": ("Composition", "parse"),
    "kvfw.core.stages": ("Outcome",),
    "kvfw.core.state": ("KVState", "exact_state"),
    "kvfw.core.task": ("Prompt", "Task", "Tokenizer", "Trial"),
    "kvfw.errors": (
        "KvfwError",
        "OptionError",
        "PromptError",
        "RequestError",
        "RunError",
        "SpecError",
        "UnknownNameError",
        "UnsupportedError",
    ),
    "kvfw.model.attach": ("attach",),
    "kvfw.model.load": ("LoadedModel", "load_model"),
    "kvfw.model.saved": ("load_cache", "save_cache"),
    "kvfw.runner.config": ("EvalConfig",),
    "kvfw.runner.evaluate": ("Evaluation", "evaluate"),
    "kvfw.verify.parts": ("verify_part",),
    "kvfw.verify.report": ("VerifyReport",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocator",
    "Composition",
    "DerivedMetric",
    "Engine",
    "EvalConfig",
    "Evaluation",
    "Evidence",
    "HeadTokens",
    "KVState",
    "Kind",
    "KvfwError",
    "LoadedModel",
    "Measured",
    "Merger",
    "Method",
    "Metric",
    "MetricInfo",
    "MetricPart",
    "Missing",
    "Needs",
    "Observation",
    "OptionError",
    "Outcome",
    "Part",
    "PartOption",
    "PartSpec",
    "Prompt",
    "PromptError",
    "Registry",
    "RequestError",
    "Response",
    "Rope",
    "RowKey",
    "RunError",
    "RunKey",
    "Scorer",
    "Selector",
    "Space",
    "SpecError",
    "StageForm",
    "Task",
    "Tokenizer",
    "Trial",
    "TrialKey",
    "TrialRecord",
    "UnknownNameError",
    "UnsupportedError",
    "Value",
    "VerifyReport",
    "attach",
    "begun_ids",
    "check_depth",
    "check_grid",
    "decoded",
    "default_registry",
    "encoded",
    "evaluate",
    "exact_state",
    "framed",
    "hookimpl",
    "load_cache",
    "load_model",
    "merge_clusters",
    "parse",
    "pool_middle",
    "protect",
    "rank",
    "rotate",
    "save_cache",
    "stable_random",
    "unrotate",
    "vector_of",
    "verify_part",
    "window_attention",
]


if not TYPE_CHECKING:  # a type checker that sees it takes every misspelt name for a public one

    def __getattr__(name: str) -> Any:
        """Loads a public name on first use."""
        if name not in _HOME_OF:
            raise AttributeError(f"module 'kvfw' has no attribute {name!r}")
        return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
