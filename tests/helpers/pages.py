"""Documentation pages as tests see them: their code blocks, each with the remark that stands above it.

A remark is an HTML comment right before a block, which readers do not see:

* ``not run: REASON``: the block is only for reading;
* ``file: PATH``: the block is the content of a file, to be written;
* ``real``: the block needs the embedded model, or minutes of patience;
* ``exit 2``: its last command ends with that code;
* ``figures vary``: its output is compared with all numbers left out.

Several are separated by semicolons.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_REMARK = re.compile(r"<!--(.*?)-->", re.DOTALL)
_NUMBER = re.compile(r"\d*\.?\d+")


@dataclass(frozen=True)
class Command:
    """One command of a console block, the lines it is said to print, and the exit code it is said to have."""

    text: str
    output: str
    exit_code: int = 0


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        page: where it stands.
        line: its first line in the page, from 1.
        language: first word after the fence; empty where there is none.
        text: its content.
        remarks: see above.
    """

    page: Path
    line: int
    language: str
    text: str
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def remark(self, name: str) -> str | None:
        """What follows ``name`` in the remark that begins with it; None where there is no such remark."""
        found = [each.removeprefix(name).lstrip(":").strip() for each in self.remarks if each.startswith(name)]
        return found[0] if found else None

    @property
    def runs(self) -> bool:
        """Whether the block is executed."""
        code = self.language in ("console", "python")
        return code and self.remark("not run") is None and self.remark("file") is None

    def commands(self) -> tuple[Command, ...]:
        """Commands after ``$``, with what is printed up to the next one. A backslash continues a command."""
        found: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif continued:
                command, output = found[-1]
                found[-1] = (f"{command}\n{line}", output)
            else:
                assert found, f"{self}: a console block begins with a command after '$ '"
                found[-1][1].append(line)
                continue
            continued = line.endswith("\\")
        codes = [0] * (len(found) - 1) + [int(self.remark("exit") or 0)]
        return tuple(Command(text, "\n".join(out), code) for (text, out), code in zip(found, codes, strict=True))


def blocks(page: Path) -> tuple[Block, ...]:
    """The fenced blocks of a Markdown page, in order."""
    found = []
    above = ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            above = token.content
            continue
        if token.type == "fence" and token.map is not None:
            remarks = [each for match in _REMARK.findall(above) for each in match.split(";")]
            language = token.info.split()[0] if token.info.strip() else ""
            stripped = tuple(each.strip() for each in remarks)
            found.append(Block(page, token.map[0] + 1, language, token.content, stripped))
        above = ""
    return tuple(found)


def without_figures(text: str) -> str:
    """The text with ``#`` for every number."""
    return _NUMBER.sub("#", text)


def written_pages() -> tuple[Path, ...]:
    """The Markdown pages of the documentation that people write, sorted."""
    return tuple(sorted(DOCS.glob("*.md")))
