"""kvfw's own tasks, announced through the plugin hook."""

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """The built-in tasks."""
    here = "kvfw.tasks"
    return (
        PartSpec(Kind.TASK, "niah", f"{here}.niah.niah:Niah", "find a random code hidden in a long text"),
        PartSpec(Kind.TASK, "facts", f"{here}.facts.facts:Facts", "put together facts scattered over a long text"),
        PartSpec(Kind.TASK, "longtext", f"{here}.longtext.longtext:Longtext", "predict how a long text goes on"),
        PartSpec(Kind.TASK, "chain", f"{here}.chain.chain:Chain", "answer at length: copy a list, write down states"),
        PartSpec(Kind.TASK, "jsonl", f"{here}.jsonl.jsonl:Jsonl", "LongBench and others, from a file of yours"),
    )
