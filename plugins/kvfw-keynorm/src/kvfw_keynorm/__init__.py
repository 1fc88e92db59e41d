"""Announces the parts of this plugin. Light: what is behind a name is imported when the name is used."""

from kvfw import Kind, PartSpec, hookimpl


@hookimpl
def kvfw_parts() -> list[PartSpec]:
    """One scorer."""
    return [PartSpec(Kind.SCORER, "key_norm", "kvfw_keynorm.scorer:KeyNorm", "keys of small norm, high")]
