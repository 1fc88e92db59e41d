"""Announces the parts of this plugin. Light: what is behind a name is imported when the name is used."""

from kvfw import Kind, PartSpec, hookimpl


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    """A merger and a space."""
    return [
        PartSpec(Kind.MERGER, "segments", "kvfw_segments.merger:Segments", "weighted means of contiguous runs"),
        PartSpec(Kind.SPACE, "slow", "kvfw_segments.space:Slow", "keys with RoPE undone where it turns slowly"),
    ]
