"""What a new plugin can bring, and what differs between the kinds apart from their templates."""

from dataclasses import dataclass

from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import unknown
from kvfw.errors import OptionError


@dataclass(frozen=True)
class Blueprint:
    """A kind of part that has templates.

    Args:
        kind: the kind; its templates lie in the folder of that name.
        summary: the generated part's line in listings.
        try_it: arguments of ``kvfw eval`` that use the part, with ``NAME`` in them.
    """

    kind: Kind
    summary: str
    try_it: str

    def arguments(self, name: str) -> str:
        """What to write after ``kvfw eval`` to use the part."""
        return self.try_it.replace("NAME", name)


BLUEPRINTS = {
    blueprint.kind: blueprint
    for blueprint in (
        Blueprint(Kind.SCORER, "tokens with large values, high", "--compose snapkv --compose NAME"),
        Blueprint(
            Kind.SELECTOR,
            "the best token of every stretch of the text",
            '--compose snapkv --compose "select(scorer=snapkv,selector=NAME)"',
        ),
        Blueprint(
            Kind.MERGER,
            "runs of neighbours become their weighted mean",
            '--compose ewmeans_pre --compose "merge(merger=NAME,space=pre)"',
        ),
        Blueprint(
            Kind.SPACE,
            "keys on a logarithmic scale, so that large coordinates weigh less",
            '--compose ewmeans_post --compose "merge(merger=ewmeans,space=NAME)"',
        ),
        Blueprint(Kind.STAGE, "the best tokens, and one slot for all others", "--compose snapkv --compose NAME"),
        Blueprint(Kind.METRIC, "length of the response against the full cache's", "--compose snapkv"),
        Blueprint(Kind.TASK, "find a number in a text that repeats itself", "--task NAME --compose snapkv"),
        Blueprint(Kind.METHOD, "SnapKV with a short window and max pooling", "--compose snapkv --compose NAME"),
    )
}


def blueprint(kind: str) -> Blueprint:
    """The blueprint of a kind, by its name in any case.

    Raises:
        OptionError: there is none; the message has the closest kinds and the list.
    """
    known = {found.value: made for found, made in BLUEPRINTS.items()}
    if kind.lower() not in known:
        raise OptionError(unknown("kind", kind, known))
    return known[kind.lower()]
