"""The installed metrics. Imports no torch, so that reports need none."""

from kvfw.core.metric import DerivedMetric, Metric
from kvfw.core.parts import Kind, PartSpec
from kvfw.core.plugins import OWN
from kvfw.core.registry import Registry
from kvfw.core.spec import build_part
from kvfw.errors import RequestError, UnsupportedError


def registered_metrics(registry: Registry) -> tuple[Metric | DerivedMetric, ...]:
    """All metrics that can be used, in table order. A plugin's that cannot are left out: see :func:`metric_problems`.

    Every registered metric is measured in every run, so that a stranger's broken one would stop everybody's runs.

    Raises:
        RequestError: a metric of kvfw's own cannot be used.
    """
    found: list[Metric | DerivedMetric] = []
    for spec in registry.of_kind(Kind.METRIC):
        try:
            found.append(built_metric(spec, registry))
        except RequestError:
            if spec.provider == OWN:
                raise
    return tuple(found)


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
    part = build_part(Kind.METRIC, spec.name, registry)
    if not isinstance(part, Metric | DerivedMetric):
        raise UnsupportedError(f"metric {spec.name!r} has neither `measure` nor `derive`, or no `info`")
    if part.info.name != spec.name:
        # Values are stored under this name: another one could overwrite a metric of kvfw.
        raise UnsupportedError(f"metric {spec.name!r} calls itself {part.info.name!r} in its `info`; make them agree")
    return part
