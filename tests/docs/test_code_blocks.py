"""Every code block of the documentation does what the page says, in the order of the page."""

import doctest
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.pages import ROOT, Block, Command, blocks, without_figures, written_pages
from helpers.reader import reader_environment

README = ROOT / "README.md"
PAGES = (README, *written_pages())
LANGUAGES = {"console", "python", "text", "toml", "yaml"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return reader_environment(tmp_path_factory.mktemp("reader") / "venv")


def needs_model(block: Block) -> bool:
    return block.remark("real") is not None or (block.runs and "load_model" in block.text)


def runnable(page: Path) -> Any:
    """The page as a parameter, marked by whether one of its blocks needs the model."""
    mark = pytest.mark.real if any(needs_model(block) for block in blocks(page)) else pytest.mark.slow
    return pytest.param(page, id=page.name, marks=mark)


def busy(page: Path) -> bool:
    return any(block.runs for block in blocks(page))


@pytest.mark.parametrize("page", [runnable(page) for page in PAGES if busy(page)])
def test_the_blocks_of_a_page_run_in_order(
    page: Path, reader: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # README's Python reads a file of the checkout; all other pages start with an empty folder.
    folder = ROOT if page == README else tmp_path
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if (path := block.remark("file")) is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(block.text, encoding="utf-8")
        elif not block.runs:
            continue
        elif block.language == "python":
            # Line numbers of a traceback are those of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        else:
            for command in block.commands():
                run(command, block, folder, reader)


def run(command: Command, block: Block, folder: Path, reader: Mapping[str, str]) -> None:
    """Runs one command; its exit code and output must be those of the page."""
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=dict(reader),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = f"{block}\n$ {command.text}\n{done.stdout}"
    assert done.returncode == command.exit_code, f"exit code {done.returncode}: {said}"
    if not command.output.strip():
        return
    want, got = command.output, done.stdout
    if block.remark("figures vary") is not None:
        want, got = without_figures(want), without_figures(got)
    assert doctest.OutputChecker().check_output(want, got, FLAGS), f"the page shows\n{command.output}\nbut {said}"


def idle(block: Block) -> str | None:
    """What is wrong with a block that is not run, if anything."""
    if (reason := block.remark("not run")) is not None:
        return None if len(reason) > 10 else "says no reason for not being run"
    if block.runs or block.language.startswith("{") or block.remark("file") is not None:
        return None
    if block.language not in LANGUAGES:
        return f"has language {block.language!r}; known: {', '.join(sorted(LANGUAGES))}"
    commands = [line for line in block.text.splitlines() if line.startswith(("$ ", "kvfw ", "pip ", "make "))]
    return f"shows a command that is not run: {commands[0]}" if commands else None


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in written_pages()])
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    assert [f"{block} {wrong}" for block in blocks(page) if (wrong := idle(block))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```console\n$ kvfw list\n```", None),
        ("<!-- not run: it takes half an hour -->\n```console\n$ kvfw eval\n```", None),
        ("<!-- not run: -->\n```console\n$ kvfw eval\n```", "says no reason for not being run"),
        ("```bash\nkvfw eval\n```", "has language 'bash'; known: console, python, text, toml, yaml"),
        ("```\nkvfw eval\n```", "has language ''; known: console, python, text, toml, yaml"),
        ("```text\nkvfw eval\n```", "shows a command that is not run: kvfw eval"),
    ],
)
def test_the_check_finds_what_is_not_run(tmp_path: Path, text: str, wrong: str | None) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [idle(block) for block in blocks(page)] == [wrong]


@pytest.mark.parametrize("wrong", ["output", "exit code"])
def test_a_page_that_says_something_wrong_fails(wrong: str, reader: Mapping[str, str], tmp_path: Path) -> None:
    block = Block(tmp_path / "page.md", 1, "console", "", ())
    command = Command("echo one 1", "one 2" if wrong == "output" else "one 1", 0 if wrong == "output" else 3)
    with pytest.raises(AssertionError, match="the page shows" if wrong == "output" else "exit code 0"):
        run(command, block, tmp_path, reader)
    varying = Block(tmp_path / "page.md", 1, "console", "", ("figures vary",))
    run(Command("echo one 1", "one 2.5"), varying, tmp_path, reader)
