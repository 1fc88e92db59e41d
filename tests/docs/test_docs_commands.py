"""Every kvfw command that a page shows is one that the command line takes, also where it is not run."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from helpers.pages import DOCS, ROOT, blocks, written_pages
from kvfw.cli.main import cli
from kvfw.core.compose.composition import parse

PAGES = (ROOT / "README.md", ROOT / "plugins" / "README.md", *written_pages())
#: Names that only a plugin of the page brings, and files that a command of the page makes.
FOREIGN = re.compile(r"key_norm|myscore|segments|slow|file=\w+\.safetensors")


def shown(page: Path, *, wrong: bool = True) -> Iterator[str]:
    """The kvfw commands in the code blocks of a page; with or without those that are meant to be refused."""
    for block in blocks(page):
        if block.remark("exit") is not None and not wrong:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            # README shows plain commands; in a console block what has no "$" is output.
            command = line.removeprefix("$ ")
            if command.startswith("kvfw ") and (block.language != "console" or command != line):
                yield command


COMMANDS = [(page.name, command) for page in PAGES for command in shown(page)]


def arguments(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


def composed(command: str) -> list[str]:
    """The compositions of a command, but those of a plugin's parts."""
    return [text for word, text in pairwise(arguments(command)) if word == "--compose" and not FOREIGN.search(text)]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_command_line_takes_it(page: str, command: str) -> None:
    name, *rest = arguments(command)
    if name.startswith("-"):
        return
    group = click.Context(cli, info_name="kvfw")
    found = cli.get_command(group, name)
    assert found is not None, f"{page}: {command}"
    if "--help" not in rest:
        found.make_context(name, rest, parent=group)


def test_there_are_commands_to_check() -> None:
    assert {page for page, _ in COMMANDS} >= {"README.md", "tutorial.md", "command-line.md"}


COMPOSED = [(page.name, text) for page in PAGES for command in shown(page, wrong=False) for text in composed(command)]


@pytest.mark.parametrize(("page", "text"), COMPOSED)
def test_compositions_are_written_canonically(page: str, text: str) -> None:
    assert str(parse(text)) == text


def test_readme_commands_that_cost_little(capsys: pytest.CaptureFixture[str]) -> None:
    from kvfw.cli.main import run

    cheap = [c for page, c in COMMANDS if page == "README.md" and c.split()[1] in ("list", "show", "models")]
    assert cheap
    for command in cheap:
        assert run(arguments(command)) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "CHANGELOG.md"], ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def links(page: Path) -> list[str]:
    """Targets of the page's links and images within the checkout; generated pages are the build's to check."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return [target for target in found if target and not re.match(r"[a-z]+:|parts/|reference\.rst$", target)]
