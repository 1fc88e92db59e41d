"""Announces the parts of this plugin. Light: what is behind a name is imported when the name is used."""

from kvfw import Kind, PartSpec, hookimpl


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    """A task and a metric."""
    return [
        PartSpec(Kind.TASK, "pairs", "kvfw_pairs.task:Pairs", "find the value of one key among many"),
        PartSpec(Kind.METRIC, "same_start", "kvfw_pairs.metric:SameStart", "leading tokens equal to the full cache's"),
    ]
