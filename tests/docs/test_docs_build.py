"""The documentation builds without a warning, and nothing is left out of it."""

import ast
import re
import shutil
import subprocess
import sys
from html import unescape
from importlib.metadata import version
from pathlib import Path

import click
import pytest

import kvfw
from helpers.pages import DOCS, ROOT
from kvfw.cli.main import COMMANDS, cli
from kvfw.core.compose.composition import parse
from kvfw.core.compress.describe import describe
from kvfw.core.parts.spec import STAGE_KINDS, Kind, PartSpec
from kvfw.core.registry.hooks import KvfwHooks
from kvfw.core.registry.registry import collect

pytestmark = pytest.mark.slow

REGISTRY = collect([])
PARTS = list(REGISTRY.specs.values())
HOOKS = [name for name in vars(KvfwHooks) if not name.startswith("_")]
TAG = re.compile(r"<[^>]+>")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as HTML, built from a copy with warnings as errors."""
    source = tmp_path_factory.mktemp("docs") / "docs"
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("_build", "parts", "reference.rst", "__pycache__"))
    out = source.parent / "html" / version("kvfw")
    # Built before, and what is no version.
    for name in ("0.0.9", "0.0.10", "latest"):
        (source.parent / "html" / name).mkdir(parents=True)
        (source.parent / "html" / name / "objects.inv").touch()
    arguments = ["-q", "-n", "-W", "--keep-going", "-b", "html", str(source), str(out)]
    done = subprocess.run([sys.executable, "-m", "sphinx", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_one_table_has_every_method_with_its_paper(built: Path) -> None:
    table = (built / "parts" / "methods.html").read_text(encoding="utf-8")
    rows = {TAG.sub("", row.split("</td>")[0]).strip(): row for row in table.split("<tr")[2:]}
    decide = (Kind.SCORER, Kind.SELECTOR, Kind.MERGER, Kind.ALLOCATOR, Kind.REFINER, Kind.CODEC, Kind.METHOD)
    named = {spec.name for spec in PARTS if spec.kind in decide}
    assert {name.partition(">")[2].strip() for name in rows} == named
    (snapkv,) = (row for name, row in rows.items() if name.endswith("snapkv"))
    assert "https://arxiv.org/abs/2404.14469" in snapkv
    assert "2024" in snapkv


def page_text(path: Path) -> str:
    """What a reader sees of an HTML page."""
    return unescape(TAG.sub("", path.read_text(encoding="utf-8")))


def test_every_page_says_its_version_and_the_front_page_leads_to_the_others(built: Path) -> None:
    release = version("kvfw")
    for page in ("index.html", "parts/scorer/snapkv.html"):
        assert f"kvfw {release}" in page_text(built / page)
    assert f"These pages describe version {release}; other versions." in " ".join(
        page_text(built / "index.html").split()
    )
    assert 'href="../index.html">other versions' in (built / "index.html").read_text(encoding="utf-8")
    listed = re.findall(r'href="([^"]+)"', (built.parent / "index.html").read_text(encoding="utf-8"))
    assert listed == [f"{name}/index.html" for name in (release, "0.0.10", "0.0.9")]


@pytest.mark.parametrize("spec", PARTS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_every_part_has_a_page(spec: PartSpec, built: Path) -> None:
    text = " ".join(page_text(built / "parts" / spec.kind / f"{spec.name}.html").split())
    facts = describe(spec, REGISTRY)
    assert spec.summary in text
    for option in facts.options:
        assert option.key in text
        assert option.about
        assert option.about in text
    for usage in facts.usage:
        assert usage in text


@pytest.mark.parametrize(
    "spec", [spec for spec in PARTS if spec.kind not in (Kind.MODEL, Kind.STAGE)], ids=lambda spec: spec.name
)
def test_every_part_says_where_it_comes_from(spec: PartSpec) -> None:
    assert re.search(r"^(Paper|Source): ", describe(spec, REGISTRY).doc, re.MULTILINE)


@pytest.mark.parametrize("spec", [spec for spec in PARTS if spec.kind in STAGE_KINDS], ids=lambda spec: spec.name)
def test_what_a_page_says_to_write_parses(spec: PartSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file that parts which read one are shown with.
    monkeypatch.chdir(tmp_path)
    Path("heads.json").write_text('{"layers": [[1, 2]]}')
    usage = describe(spec, REGISTRY).usage
    assert usage
    for text in usage:
        assert parse(text, REGISTRY).stages


def test_the_page_of_a_part_has_its_paper_and_its_defaults(built: Path) -> None:
    page = (built / "parts" / "scorer" / "snapkv.html").read_text(encoding="utf-8")
    assert 'href="https://arxiv.org/abs/2404.14469"' in page
    text = " ".join(page_text(built / "parts" / "scorer" / "snapkv.html").split())
    assert "snapkv(window=84,kernel=7,pool=avg,reduce=mean)" in text
    assert "the last 84 queries" in text
    assert "avg or max" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_its_options(name: str, built: Path) -> None:
    text = page_text(built / "command-line.html")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert f"kvfw {name} [OPTIONS]" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert all(option in text for option in parameter.opts)
            assert parameter.help is not None
            assert " ".join(parameter.help.split()) in " ".join(text.split())


@pytest.mark.parametrize("name", kvfw.__all__)
def test_every_public_name_is_documented(name: str, built: Path) -> None:
    assert f'id="kvfw.{name}"' in (built / "reference.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_tested(hook: str) -> None:
    headings = re.findall(r"^#+ .*$", (DOCS / "plugins.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert any(f"`{hook}`" in heading for heading in headings)
    tests = [test for path in (ROOT / "tests").rglob("test_*.py") for test in functions(path)]
    assert any(hook in test for test in tests if "test_every_hook_is_documented" not in test)


def functions(path: Path) -> list[str]:
    """The source of every test function of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [ast.unparse(node) for node in found if node.name.startswith("test_")]
