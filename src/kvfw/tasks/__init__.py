"""kvfw's own tasks, announced through the plugin hook."""

from kvfw.core.hookspecs import hookimpl
from kvfw.core.parts import Kind, PartSpec


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """The built-in tasks."""
    return (PartSpec(Kind.TASK, "niah", "kvfw.tasks.niah:Niah", "find a random code hidden in a long text"),)
