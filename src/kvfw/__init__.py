"""kvfw: KV-cache compression methods as compositions of named parts.

Importing this package imports no torch: every name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfw.core.compose.composition import Composition, parse
    from kvfw.core.compress.stages import Outcome, Stage
    from kvfw.core.contracts.metric import (
        DerivedMetric,
        Engine,
        Evidence,
        Measured,
        Metric,
        MetricPart,
        Missing,
        Response,
        Value,
    )
    from kvfw.core.contracts.parts import Allocator, LayerView, Merger, Scorer, Selector, Space
    from kvfw.core.contracts.records import Facet, MetricInfo, RowKey, TrialKey, TrialRecord, vector_of
    from kvfw.core.contracts.task import Sample, Task, Tokenizer, Turn
    from kvfw.core.ops.attention import pool_middle, window_attention
    from kvfw.core.ops.clusters import HeadTokens, merge_clusters
    from kvfw.core.ops.topk import rank
    from kvfw.core.parts.part import Method, Part, PartOption, StageForm
    from kvfw.core.parts.spec import Kind, PartSpec
    from kvfw.core.registry.hooks import hookimpl
    from kvfw.core.registry.registry import Registry, default_registry
    from kvfw.core.state.observation import Needs, Observation, protect
    from kvfw.core.state.rope import Rope, rotate, unrotate
    from kvfw.core.state.slots import chosen_slots, gather, join, take
    from kvfw.core.state.state import KVState, exact_state
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
    from kvfw.model.cache.saved import load_cache, save_cache
    from kvfw.model.load.load import LoadedModel, load_model
    from kvfw.model.session.attach import attach
    from kvfw.runner.execute.evaluate import Evaluation, evaluate
    from kvfw.runner.plan.config import EvalConfig
    from kvfw.tasks.prompting import (
        begun_ids,
        check_depth,
        check_grid,
        decoded,
        encoded,
        framed,
        grid_sample,
        stable_random,
    )
    from kvfw.verify.parts import verify_part
    from kvfw.verify.report import VerifyReport

__version__ = "0.1.0"

_HOMES = {
    "kvfw.core.registry.hooks": ("hookimpl",),
    "kvfw.core.contracts.parts": ("Allocator", "LayerView", "Merger", "Scorer", "Selector", "Space"),
    "kvfw.core.contracts.metric": (
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
    "kvfw.core.state.observation": ("Needs", "Observation", "protect"),
    "kvfw.core.ops.attention": ("pool_middle", "window_attention"),
    "kvfw.core.ops.clusters": ("HeadTokens", "merge_clusters"),
    "kvfw.core.ops.topk": ("rank",),
    "kvfw.core.parts.part": ("Method", "Part", "PartOption", "StageForm"),
    "kvfw.core.parts.spec": ("Kind", "PartSpec"),
    "kvfw.tasks.prompting": (
        "begun_ids",
        "check_depth",
        "check_grid",
        "decoded",
        "encoded",
        "framed",
        "grid_sample",
        "stable_random",
    ),
    "kvfw.core.contracts.records": ("Facet", "MetricInfo", "RowKey", "TrialKey", "TrialRecord", "vector_of"),
    "kvfw.core.registry.registry": ("Registry", "default_registry"),
    "kvfw.core.state.rope": ("Rope", "rotate", "unrotate"),
    "kvfw.core.compose.composition": ("Composition", "parse"),
    "kvfw.core.compress.stages": ("Outcome", "Stage"),
    "kvfw.core.state.slots": ("chosen_slots", "gather", "join", "take"),
    "kvfw.core.state.state": ("KVState", "exact_state"),
    "kvfw.core.contracts.task": ("Sample", "Task", "Tokenizer", "Turn"),
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
    "kvfw.model.session.attach": ("attach",),
    "kvfw.model.load.load": ("LoadedModel", "load_model"),
    "kvfw.model.cache.saved": ("load_cache", "save_cache"),
    "kvfw.runner.plan.config": ("EvalConfig",),
    "kvfw.runner.execute.evaluate": ("Evaluation", "evaluate"),
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
    "Facet",
    "HeadTokens",
    "KVState",
    "Kind",
    "KvfwError",
    "LayerView",
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
    "PromptError",
    "Registry",
    "RequestError",
    "Response",
    "Rope",
    "RowKey",
    "RunError",
    "Sample",
    "Scorer",
    "Selector",
    "Space",
    "SpecError",
    "Stage",
    "StageForm",
    "Task",
    "Tokenizer",
    "TrialKey",
    "TrialRecord",
    "Turn",
    "UnknownNameError",
    "UnsupportedError",
    "Value",
    "VerifyReport",
    "attach",
    "begun_ids",
    "check_depth",
    "check_grid",
    "chosen_slots",
    "decoded",
    "default_registry",
    "encoded",
    "evaluate",
    "exact_state",
    "framed",
    "gather",
    "grid_sample",
    "hookimpl",
    "join",
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
    "take",
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
