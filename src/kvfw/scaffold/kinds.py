"""The kinds of part that a new plugin can have: one per folder of templates."""

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import unknown
from kvfw.errors import OptionError

TEMPLATES = Environment(
    loader=PackageLoader("kvfw.scaffold"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    autoescape=False,  # Python, TOML and Markdown, not HTML
)


@dataclass(frozen=True)
class Blueprint:
    """A kind of part that has templates, in the folder of that name.

    ``summary`` is the generated part's line in listings, ``try_it`` arguments of ``kvfw eval`` with ``NAME`` in them.
    """

    kind: Kind
    summary: str
    try_it: str

    def arguments(self, name: str) -> str:
        """Arguments of ``kvfw eval`` that use the part."""
        return self.try_it.replace("NAME", name)


def _read(kind: Kind) -> Blueprint:
    facts = vars(TEMPLATES.get_template(f"{kind}/facts.j2").module)
    return Blueprint(kind, facts["summary"], facts["try_it"])


BLUEPRINTS = {kind: _read(kind) for kind in Kind if f"{kind}/facts.j2" in TEMPLATES.list_templates()}


def blueprint(kind: str) -> Blueprint:
    """The blueprint of a kind, case-insensitive. Raises OptionError, listing the kinds, closest first, if unknown."""
    if kind.lower() not in BLUEPRINTS:
        raise OptionError(unknown("kind", kind, BLUEPRINTS))
    return BLUEPRINTS[Kind(kind.lower())]
