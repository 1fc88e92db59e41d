"""Spaces: transforms of keys in which merging happens."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.SPACE, "post", f"{__name__}.post:Post", "keys as cached, after RoPE"),
    PartSpec(Kind.SPACE, "pre", f"{__name__}.pre:Pre", "keys with RoPE undone"),
)
