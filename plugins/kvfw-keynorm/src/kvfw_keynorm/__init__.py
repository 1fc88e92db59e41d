"""Announces the parts of this plugin. Light: what is behind a name is imported when the name is used."""

from kvfw.core.hookspecs import hookimpl
from kvfw.core.parts import Kind, PartSpec


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    """One scorer."""
    return [PartSpec(Kind.SCORER, "key_norm", "kvfw_keynorm.scorer:KeyNorm", "keys of small norm, high")]
