"""The installed metrics. Does not import torch, so that reports work without it."""

from typing import cast

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.plugins import OWN
from kvfw.core.registry.registry import Registry
from kvfw.errors import RequestError, UnsupportedError
from kvfw.runner.plan.config import EvalConfig
from kvfw.runner.plan.guarded import GuardedDerived, GuardedMetric


def registered_metrics(registry: Registry) -> tuple[Metric | DerivedMetric, ...]:
    """All usable metrics, in table order. Raises RequestError if one of kvfw's own is unusable.

    Every run measures every registered metric, so a plugin's broken one must not stop it: an unusable one is left out
    (see :func:`metric_problems`), one that fails while measuring gives missing values.
    """
    found: list[Metric | DerivedMetric] = []
    for spec in registry.of_kind(Kind.METRIC):
        try:
            built = built_metric(spec, registry)
        except RequestError:
            if spec.provider == OWN:
                raise
            continue
        found.append(built if spec.provider == OWN else guarded(built, spec))
    return tuple(found)


def is_asked(metric: Metric | DerivedMetric, config: EvalConfig) -> bool:
    """Whether an evaluation measures a metric: not if it is only of use with a setting that is not given."""
    setting = getattr(getattr(metric, "inner", metric), "only_with", "")
    return not setting or getattr(config, setting, None) is not None


def guarded(metric: Metric | DerivedMetric, spec: PartSpec) -> Metric | DerivedMetric:
    """A plugin's metric, wrapped so that it cannot stop a run."""
    who = f"metric {spec.name!r} of plugin {spec.provider!r}"
    # Casts: a metric's `info` is a class attribute, a guard's an instance attribute.
    if isinstance(metric, Metric):
        return cast(Metric, GuardedMetric(metric, metric.info, who))
    return cast(DerivedMetric, GuardedDerived(metric, metric.info, who))


def metric_problems(registry: Registry) -> tuple[str, ...]:
    """One line for every plugin metric that is left out."""
    problems = []
    for spec in registry.of_kind(Kind.METRIC):
        try:
            built_metric(spec, registry)
        except RequestError as error:
            problems.append(f"metric {spec.name!r} of plugin {spec.provider!r} is not measured: {error}")
    return tuple(problems)


def built_metric(spec: PartSpec, registry: Registry) -> Metric | DerivedMetric:
    """The metric with default options. RequestError: it cannot be imported, needs an option or is no metric."""
    part = build_part(Kind.METRIC, spec.name, registry).value
    if not isinstance(part, Metric | DerivedMetric):
        raise UnsupportedError(f"metric {spec.name!r} has neither `measure` nor `derive`, or no `info`")
    if part.info.name != spec.name:
        # Values are stored under this name; a different one could overwrite a metric of kvfw.
        raise UnsupportedError(f"metric {spec.name!r} calls itself {part.info.name!r} in its `info`; make them agree")
    return part
