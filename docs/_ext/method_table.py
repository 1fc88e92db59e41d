"""One table of all methods, made from the parts themselves: name, paper, kind, year, what is observed, kvpress."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvfw.core.compress.describe import PartFacts
from kvfw.core.parts.spec import Kind

#: Kinds that papers are about, in the order of the table.
KINDS = (Kind.SCORER, Kind.SELECTOR, Kind.MERGER, Kind.ALLOCATOR, Kind.REFINER, Kind.CODEC, Kind.METHOD)
HEADER = ("name", "kind", "paper", "year", "what is observed for it", "kvpress")
#: "Paper: Li et al. 2024, Its Title, arXiv 2404.14469." The title may be missing, and so may the number.
_PAPER = re.compile(
    r"^Paper: (?P<who>[^\n]*?) (?P<year>(?:19|20)\d\d)\b(?P<rest>.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_ARXIV = re.compile(r"\barXiv\s+(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Paper:
    """Where a method was published: authors, year and, if it is there, the number on arXiv."""

    who: str
    year: str
    arxiv: str | None


def paper_of(doc: str) -> Paper | None:
    """The first paper that a docstring names; None for a part that is of kvfw."""
    found = _PAPER.search(doc)
    if found is None:
        return None
    number = _ARXIV.search(found["rest"])
    who = " ".join(found["who"].split()).rpartition(": ")[2]
    return Paper(who, found["year"], number[1] if number else None)


def method_table(parts: Iterable[PartFacts]) -> str:
    """The table as reStructuredText, parts in the order given."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in (HEADER, *map(_cells, parts)):
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(cells)]
    return "\n".join(lines)


def _cells(facts: PartFacts) -> tuple[str, ...]:
    spec, paper = facts.spec, paper_of(facts.doc)
    name = f":doc:`{spec.name} <{spec.kind}/{spec.name}>`"
    observed = "; ".join(facts.needs) if facts.needs else "nothing more" if facts.needs == () else "that of its parts"
    return (
        name,
        str(spec.kind),
        _linked(paper, facts.doc),
        paper.year if paper else "",
        observed,
        spec.facts.get("kvpress", "no"),
    )


def _linked(paper: Paper | None, doc: str) -> str:
    if paper is None:
        return "see its page" if "\nSource: " in doc else "none: a baseline, or kvfw's own"
    return f"`{paper.who} <https://arxiv.org/abs/{paper.arxiv}>`__" if paper.arxiv else paper.who
