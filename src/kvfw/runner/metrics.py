"""The installed metrics. Imports no torch, so that reports need none."""

from kvfw.core.metric import DerivedMetric, Metric
from kvfw.core.parts import Kind
from kvfw.core.registry import Registry
from kvfw.core.spec import build_part
from kvfw.errors import UnsupportedError


def registered_metrics(registry: Registry) -> tuple[Metric | DerivedMetric, ...]:
    """All registered metrics, in table order."""
    found: list[Metric | DerivedMetric] = []
    for spec in registry.of_kind(Kind.METRIC):
        part = build_part(Kind.METRIC, spec.name, registry)
        if not isinstance(part, Metric | DerivedMetric):
            raise UnsupportedError(f"metric {spec.name!r} has neither `measure` nor `derive`, or no `info`")
        found.append(part)
    return tuple(found)
