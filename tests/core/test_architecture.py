"""Imports point one way, and what is heavy or foreign stays in the room that owns it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

#: What each room may import from kvfw, besides itself and kvfw.errors.
MAY_IMPORT = {
    "errors": set[str](),
    "core": set[str](),
    "methods": {"core"},
    "metrics": {"core"},
    "tasks": {"core"},
    "model": {"core", "store"},
    "store": {"core"},
    "scaffold": {"core"},
    "report": {"core", "store"},
    "runner": {"core", "model", "store", "report"},
    "verify": {"core", "model", "store", "runner"},
    "cli": {"core", "runner", "report", "store", "model", "scaffold", "verify", "bench"},
    "bench": {"core", "model", "runner", "report"},
}
#: Outside packages that belong to some rooms only.
OWNERS = {
    "transformers": {"model"},
    "click": {"cli"},
    "rich": {"cli", "report", "runner", "bench"},
    "pluggy": {"core"},
    "numba": {"core"},
}
#: Rooms that may ask the front door which version runs.
KNOW_THE_DOOR = {"runner", "cli"}
#: Rooms whose files do not know each other.
STRANGERS_WITHIN = {"methods"}
#: The command line's first modules answer --help and list without these.
HEAVY = {"torch", "transformers", "numpy", "numba", "scipy", "pydantic"}


def module_name(path: Path, source: Path = SOURCE) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Every module that a file imports anywhere, also inside functions and for type checking only."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = module.split(".")
                parent = up[: len(up) - node.level + is_package]
                base = ".".join([*parent, base] if base else parent)
            # `from kvfw import methods` and `from kvfw.methods import snapkv` name modules, too.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str:
    """``kvfw.core.ops.topk`` is in the room ``core``; kvfw and kvfw.__main__ are the front door, in no room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def faults(text: str, module: str, is_package: bool = False) -> list[str]:
    """What a file imports against the rules."""
    room = room_of(module)
    found = []
    for target in imported(text, module, is_package):
        top = target.split(".")[0]
        if top in OWNERS and room not in OWNERS[top]:
            found.append(f"{module} imports {target}: only {', '.join(sorted(OWNERS[top]))} may")
        if top != "kvfw" or room == "" or (target == "kvfw" and room in KNOW_THE_DOOR):
            continue
        other = room_of(target)
        if other == room:
            within = target.split(".")[2] if target.count(".") >= 2 else ""
            own = module.split(".")[2] if module.count(".") >= 2 else ""
            if room in STRANGERS_WITHIN and within not in ("", own):
                found.append(f"{module} imports {target}: files of {room} do not know each other")
        elif other not in (MAY_IMPORT[room] | {"errors"}):
            found.append(f"{module} imports {target}: {room} may not import {other or 'the front door'}")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path))
def test_imports_point_one_way(path: Path) -> None:
    assert not faults(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")


def test_every_room_has_a_rule() -> None:
    rooms = {room_of(module_name(path)) for path in FILES} - {""}
    assert rooms <= set(MAY_IMPORT)
    assert {"core", "methods", "model", "errors"} <= rooms


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kvfw.core.rope", "import transformers"),
        ("kvfw.core.rope", "from transformers.cache_utils import Cache"),
        ("kvfw.core.rope", "import click"),
        ("kvfw.core.rope", "def f():\n    from rich.table import Table"),
        ("kvfw.core.rope", "from kvfw.methods.snapkv import SnapKV"),
        ("kvfw.core.rope", "from kvfw import methods"),
        ("kvfw.core.rope", "from .. import methods"),
        ("kvfw.core.rope", "from ..methods.snapkv import SnapKV"),
        ("kvfw.core.rope", "import kvfw"),
        ("kvfw.errors", "from kvfw.core.state import KVState"),
        ("kvfw.methods.snapkv", "from kvfw.methods.topk import TopK"),
        ("kvfw.methods.snapkv", "from kvfw.methods import topk"),
        ("kvfw.methods.snapkv", "from . import topk"),
        ("kvfw.methods.snapkv", "from .topk import TopK"),
        ("kvfw.methods.snapkv", "from kvfw.model.cache import CompressedCache"),
        ("kvfw.metrics.recall", "from kvfw.tasks.niah import Needle"),
        ("kvfw.runner.plan", "import kvfw.methods.snapkv"),
        ("kvfw.runner.plan", "from kvfw import attach"),
        ("kvfw.runner.plan", "if TYPE_CHECKING:\n    from kvfw.metrics.recall import Recall"),
        ("kvfw.runner.plan", "from kvfw.cli.main import main"),
        ("kvfw.runner.plan", "from transformers import PreTrainedModel"),
        ("kvfw.report.table", "from kvfw.runner.plan import Plan"),
        ("kvfw.store.trials", "from kvfw.report.stats import Summary"),
        ("kvfw.cli.main", "from kvfw.methods.snapkv import SnapKV"),
    ],
)
def test_the_checker_finds_violations(module: str, text: str) -> None:
    assert len(faults(text, module)) == 1


def test_the_checker_knows_packages() -> None:
    assert faults("from .snapkv import SnapKV", "kvfw.methods", is_package=True)
    assert faults("from ..methods import snapkv", "kvfw.core", is_package=True)
    assert not faults("from .rope import Rope", "kvfw.core", is_package=True)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kvfw.core.rope", "import torch\nfrom kvfw.core.state import KVState\nfrom kvfw.errors import RunError"),
        ("kvfw.core.ops.topk", "from .slots import take\nfrom ..state import KVState"),
        ("kvfw.methods.snapkv", "from kvfw.core.options import Part"),
        ("kvfw.model.cache", "from transformers.cache_utils import Cache\nfrom kvfw.model.layers import Layer"),
        ("kvfw.runner.plan", "from kvfw.model.load import load_model\nfrom kvfw.store.trials import TrialLog"),
        ("kvfw.runner.facts", "import kvfw"),
        ("kvfw.cli.main", "import click\nfrom rich.table import Table\nfrom kvfw.runner.plan import Plan"),
        ("kvfw", "from kvfw.model.attach import attach"),
    ],
)
def test_the_checker_allows_what_is_allowed(module: str, text: str) -> None:
    assert not faults(text, module)


#: Modules that announce, parse or count must not cost the import of what they announce.
LIGHT = [
    "kvfw",
    "kvfw.errors",
    "kvfw.core",
    "kvfw.core.parts",
    "kvfw.core.hookspecs",
    "kvfw.core.plugins",
    "kvfw.core.registry",
    "kvfw.core.prompting",
    "kvfw.core.budget",
    "kvfw.core.syntax",
    "kvfw.methods",
    "kvfw.metrics",
    "kvfw.tasks",
    "kvfw.model",
    "kvfw.model.catalogue",
    "kvfw.scaffold.render",
    "kvfw.scaffold.write",
]


def at_import(text: str) -> Iterator[str]:
    """What a file imports when it is imported itself: not inside functions, not for type checking only."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(ast.unparse(node), "kvfw")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_stay_light(module: str) -> None:
    """Followed through every module of kvfw that they import in turn."""
    by_name = {module_name(path): path for path in FILES}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        while name and name not in by_name:
            name = name.rpartition(".")[0]  # an imported attribute: look into its module
        if not name or name in seen:
            continue
        seen.add(name)
        targets = set(at_import(by_name[name].read_text(encoding="utf-8")))
        heavy = {target for target in targets if target.split(".")[0] in HEAVY}
        assert not heavy, f"{module} comes to import {sorted(heavy)} through {name}"
        waiting.extend(target for target in targets if target.startswith("kvfw."))
