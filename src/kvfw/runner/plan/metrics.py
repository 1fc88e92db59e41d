"""The installed metrics. Imports no torch, so that reports need none."""

from typing import cast

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.plugins import OWN
from kvfw.core.registry.registry import Registry
from kvfw.errors import RequestError, UnsupportedError
from kvfw.runner.plan.guarded import GuardedDerived, GuardedMetric


def registered_metrics(registry: Registry) -> tuple[Metric | DerivedMetric, ...]:
    """All metrics that can be used, in table order. A plugin's that cannot are left out: see :func:`metric_problems`.

    Every registered metric is measured in every run, so that a stranger's broken one would stop everybody's runs. One
    that fails while it measures gives missing values.

    Raises:
        RequestError: a metric of kvfw's own cannot be used.
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


def guarded(metric: Metric | DerivedMetric, spec: PartSpec) -> Metric | DerivedMetric:
    """A plugin's metric that cannot stop a run."""
    who = f"metric {spec.name!r} of plugin {spec.provider!r}"
    # Casts: a metric's `info` belongs to its class, a guard's to the instance, since each guards another metric.
    if isinstance(metric, Metric):
        return cast(Metric, GuardedMetric(metric, metric.info, who))
    return cast(DerivedMetric, GuardedDerived(metric, metric.info, who))


def metric_problems(registry: Registry) -> tuple[str, ...]:
    """One line for every plugin's metric that is left out."""
    problems = []
    for spec in registry.of_kind(Kind.METRIC):
        try:
            built_metric(spec, registry)
        except RequestError as error:
            problems.append(f"metric {spec.name!r} of plugin {spec.provider!r} is not measured: {error}")
    return tuple(problems)


def built_metric(spec: PartSpec, registry: Registry) -> Metric | DerivedMetric:
    """The metric with its default options.

    Raises:
        RequestError: it cannot be imported, needs an option, or is no metric.
    """
    part = build_part(Kind.METRIC, spec.name, registry).value
    if not isinstance(part, Metric | DerivedMetric):
        raise UnsupportedError(f"metric {spec.name!r} has neither `measure` nor `derive`, or no `info`")
    if part.info.name != spec.name:
        # Values are stored under this name: another one could overwrite a metric of kvfw.
        raise UnsupportedError(f"metric {spec.name!r} calls itself {part.info.name!r} in its `info`; make them agree")
    return part
