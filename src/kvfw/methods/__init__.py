"""kvfw's own parts, announced through the same hook that plugins use. Nothing here imports torch."""

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.hooks import hookimpl
from kvfw.methods import allocators, codecs, mergers, recipes, refiners, scorers, selectors, spaces

_STAGES = "kvfw.core.compress.stages"
STAGES = (
    PartSpec(Kind.STAGE, "select", f"{_STAGES}:Select", "keep the tokens a selector chooses by a scorer's scores"),
    PartSpec(Kind.STAGE, "merge", f"{_STAGES}:Merge", "merge all that is left into few slots, in a space"),
)


@hookimpl
def kvfw_parts() -> tuple[PartSpec, ...]:
    """The built-in parts; each room of parts announces its own."""
    rooms = (scorers, selectors, mergers, spaces, allocators, refiners, codecs, recipes)
    return (*STAGES, *(spec for room in rooms for spec in room.PARTS))
