"""Imports point one way, and what is heavy or foreign stays in the room that owns it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

#: What each room may import from kvfw, besides itself and kvfw.errors. From left to right: who knows more stands below.
MAY_IMPORT = {
    "errors": set[str](),
    "core": set[str](),
    "methods": {"core"},
    "metrics": {"core"},
    "tasks": {"core"},
    "store": {"core"},
    "analysis": {"core"},
    "scaffold": {"core"},
    "model": {"core", "store"},
    "report": {"core", "analysis"},
    "runner": {"core", "model", "store", "analysis", "report"},
    "verify": {"core", "model", "store", "runner"},
    "bench": {"core", "model", "runner", "report"},
    "harness": {"core", "model", "runner"},
    "cli": {"core", "model", "store", "analysis", "report", "runner", "scaffold", "verify", "bench", "harness"},
}
#: The floors of a room from the ground up. A file knows its own floor and those below, never one beside or above it.
#: Files of the room that stand on no floor are on top of all.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (("parts", "state"), ("contracts",), ("ops", "registry"), ("compose",), ("compress",)),
    "model": (("compat",), ("embedded",), ("inspect",), ("load",), ("cache",), ("session",), ("run",)),
    "runner": (("plan",), ("execute",)),
    "verify": (("instruments",), ("findings",), ("checks",)),
}
#: Rooms whose files do not know each other, whatever floor they stand on.
STRANGERS_WITHIN = {"methods", "metrics"}
#: Folders that show one function to the rest of kvfw and keep all else to themselves.
ONE_DOOR = {"kvfw.core.ops.kmeans": "clusters_of_heads"}
#: Outside packages that belong to some rooms only.
OWNERS = {
    "transformers": {"model"},
    "click": {"cli"},
    "rich": {"cli", "report", "runner", "bench"},
    "pluggy": {"core"},
    "numba": {"core"},
    "lm_eval": {"harness"},
}
#: Rooms that may ask the front door which version runs.
KNOW_THE_DOOR = {"runner", "harness", "cli"}
#: The command line's first modules answer --help and list without these.
HEAVY = {"torch", "transformers", "numpy", "numba", "scipy", "pydantic"}


def module_name(path: Path, source: Path = SOURCE) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Every name that a file imports anywhere, also inside functions and for type checking only."""
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


def level_of(module: str) -> int:
    """How high a module stands in its room: from 0 on the lowest floor to the top, where what has no floor stands."""
    floors = FLOORS.get(room_of(module), ())
    floor = (*module.split("."), "", "")[2]
    return next((level for level, names in enumerate(floors) if floor in names), len(floors))


def fault_within(module: str, target: str) -> str | None:
    """What is wrong with an import from the same room."""
    room = room_of(module)
    if room in STRANGERS_WITHIN:
        if module == f"kvfw.{room}" and target.count(".") == 2:
            return None  # the room's front announces what its folders announce
        return f"files of {room} do not know each other"
    own, other = ((*name.split("."), "", "")[2] for name in (module, target))
    on_top = level_of(module) == len(FLOORS.get(room, ()))
    if own != other and not on_top and level_of(target) >= level_of(module):
        return f"{room}/{own} stands on no higher floor than {room}/{other}"
    return None


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
            if why := fault_within(module, target):
                found.append(f"{module} imports {target}: {why}")
        elif other not in (MAY_IMPORT[room] | {"errors"}):
            found.append(f"{module} imports {target}: {room} may not import {other or 'the front door'}")
        for door, shown in ONE_DOOR.items():
            if target.startswith(f"{door}.") and not module.startswith(door) and target != f"{door}.{shown}":
                found.append(f"{module} imports {target}: {door} shows {shown} and nothing else")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path))
def test_imports_point_one_way(path: Path) -> None:
    assert not faults(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")


def test_every_room_has_a_rule() -> None:
    rooms = {room_of(module_name(path)) for path in FILES} - {""}
    assert rooms == set(MAY_IMPORT)


def test_every_floor_has_a_rule() -> None:
    for room, floors in FLOORS.items():
        named = {name for names in floors for name in names}
        there = {path.parent.name for path in (SOURCE / "kvfw" / room).glob("*/__init__.py")}
        assert there == named, f"{room} has the floors {sorted(there)}, and the rules name {sorted(named)}"


def test_no_two_classes_share_a_name() -> None:
    """One name, one meaning; a private class of one file included."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(module_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kvfw.core.state.rope", "import transformers"),
        ("kvfw.core.state.rope", "from transformers.cache_utils import Cache"),
        ("kvfw.core.state.rope", "import click"),
        ("kvfw.core.state.rope", "def f():\n    from rich.table import Table"),
        ("kvfw.core.state.rope", "from kvfw.methods.scorers.snapkv import SnapKV"),
        ("kvfw.core.state.rope", "from kvfw import methods"),
        ("kvfw.core.state.rope", "from .. import methods"),
        ("kvfw.core.state.rope", "from ...methods.scorers.snapkv import SnapKV"),
        ("kvfw.core.state.rope", "import kvfw"),
        ("kvfw.errors", "from kvfw.core.state.state import KVState"),
        ("kvfw.methods.scorers.snapkv", "from kvfw.methods.selectors.topk import TopK"),
        ("kvfw.methods.scorers.snapkv", "from kvfw.methods import topk"),
        ("kvfw.methods.scorers.snapkv", "from . import topk"),
        ("kvfw.methods.scorers.snapkv", "from .topk import TopK"),
        ("kvfw.methods.scorers.snapkv", "from kvfw.model.cache.cache import CompressedCache"),
        ("kvfw.metrics.span_kept", "from kvfw.metrics.ref_ppl import RefPPL"),
        ("kvfw.core.state.rope", "from kvfw.core.contracts.parts import Scorer"),
        ("kvfw.core.state.rope", "from kvfw.core.parts.spec import Kind"),
        ("kvfw.core.ops.topk", "from kvfw.core.registry.registry import Registry"),
        ("kvfw.core.compose.composition", "from kvfw.core.compress.stages import Stage"),
        ("kvfw.core.compress.stages", "from kvfw.core.ops.kmeans.nearest import Search"),
        ("kvfw.model.cache.cache", "from kvfw.model.session.session import Session"),
        ("kvfw.model.inspect.support", "from kvfw.model.load.load import load_model"),
        ("kvfw.runner.plan.prepare", "from kvfw.runner.execute.trial import fill"),
        ("kvfw.verify.checks.scorer", "from kvfw.verify.suite import PROPERTIES"),
        ("kvfw.analysis.results", "from kvfw.report.texts import number"),
        ("kvfw.metrics.span_kept", "from kvfw.tasks.niah.niah import Niah"),
        ("kvfw.runner.plan", "import kvfw.methods.scorers.snapkv"),
        ("kvfw.runner.plan", "from kvfw import attach"),
        ("kvfw.runner.plan", "if TYPE_CHECKING:\n    from kvfw.metrics.span_kept import SpanKept"),
        ("kvfw.runner.plan", "from kvfw.cli.main import main"),
        ("kvfw.runner.plan", "from transformers import PreTrainedModel"),
        ("kvfw.report.terminal", "from kvfw.runner.plan import Plan"),
        ("kvfw.store.trials", "from kvfw.analysis.stats import Summary"),
        ("kvfw.cli.main", "from kvfw.methods.scorers.snapkv import SnapKV"),
    ],
)
def test_the_checker_finds_violations(module: str, text: str) -> None:
    assert len(faults(text, module)) == 1


def test_the_checker_knows_packages() -> None:
    assert faults("from .snapkv import SnapKV", "kvfw.methods", is_package=True)
    assert faults("from ..methods import snapkv", "kvfw.core", is_package=True)
    assert not faults("from .state import Rope", "kvfw.core.state", is_package=True)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "kvfw.core.state.rope",
            "import torch\nfrom kvfw.core.state.state import KVState\nfrom kvfw.errors import RunError",
        ),
        ("kvfw.core.ops.topk", "from .attention import pool_middle\nfrom ..state.state import KVState"),
        ("kvfw.core.compress.stages", "from kvfw.core.ops.kmeans import clusters_of_heads"),
        ("kvfw.model.run.decode", "from kvfw.model.session.session import Session"),
        ("kvfw.verify.suite", "from kvfw.verify.checks import scorer"),
        ("kvfw.methods.scorers.snapkv", "from kvfw.core.parts.part import Part"),
        (
            "kvfw.model.cache.cache",
            "from transformers.cache_utils import Cache\nfrom kvfw.model.inspect.layers import Layer",
        ),
        ("kvfw.runner.plan", "from kvfw.model.load.load import load_model\nfrom kvfw.store.trials import TrialLog"),
        ("kvfw.runner.execute.provenance", "import kvfw"),
        ("kvfw.cli.main", "import click\nfrom rich.table import Table\nfrom kvfw.runner.plan import Plan"),
        ("kvfw", "from kvfw.model.session.attach import attach"),
    ],
)
def test_the_checker_allows_what_is_allowed(module: str, text: str) -> None:
    assert not faults(text, module)


#: Modules that announce, parse or count must not cost the import of what they announce.
LIGHT = [
    "kvfw",
    "kvfw.errors",
    "kvfw.core",
    "kvfw.core.parts.spec",
    "kvfw.core.registry.hooks",
    "kvfw.core.registry.plugins",
    "kvfw.core.registry.registry",
    "kvfw.tasks.prompting",
    "kvfw.core.compose.budget",
    "kvfw.core.compose.syntax",
    "kvfw.methods",
    "kvfw.metrics",
    "kvfw.tasks",
    "kvfw.model",
    "kvfw.model.embedded.catalogue",
    "kvfw.scaffold.into",
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


# --- the tests themselves ---------------------------------------------------------------------------------

TESTS = SOURCE.parent / "tests"
#: Folders of tests that are of no room: helpers, the documentation, plugins, and what type checkers say.
OF_NO_ROOM = {"helpers", "docs", "plugins", "typing"}
TEST_FILES = sorted(path for folder in (TESTS, SOURCE.parent / "plugins") for path in folder.rglob("*.py"))


def imported_tests(text: str) -> list[str]:
    """The test modules a file imports, however they are named."""
    return sorted(name for name in set(imported(text, "tests.some.file")) if ".test_" in f".{name}")


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.relative_to(SOURCE.parent).as_posix())
def test_no_file_imports_a_test(path: Path) -> None:
    """What two test files share stands in tests/helpers, and helpers know no test."""
    assert imported_tests(path.read_text(encoding="utf-8")) == []


def homeless(folders: set[Path]) -> list[str]:
    """Folders of tests that are no folder of the source."""
    return sorted(
        folder.as_posix()
        for folder in folders
        if folder.parts and folder.parts[0] not in OF_NO_ROOM and not (SOURCE / "kvfw" / folder).is_dir()
    )


def test_folders_of_tests_are_those_of_the_source() -> None:
    assert homeless({path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}) == []


def test_every_test_is_in_a_file_of_its_own_name() -> None:
    names = [path.name for path in TEST_FILES if path.name.startswith("test_")]
    assert {name for name in names if names.count(name) > 1} == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from test_session import eager_attention", ["test_session.eager_attention"]),
        ("import test_session", ["test_session"]),
        ("from model.session.test_session import eager_attention", ["model.session.test_session.eager_attention"]),
        ("from .test_session import eager_attention", ["tests.some.test_session.eager_attention"]),
        ("def f():\n    from test_session import eager_attention", ["test_session.eager_attention"]),
        ("from helpers.eager import eager_attention\nimport pytest", []),
        ("import model.session.test_session", ["model.session.test_session"]),
        ("from . import test_session", ["tests.some.test_session"]),
    ],
)
def test_the_checker_finds_imported_tests(text: str, found: list[str]) -> None:
    assert imported_tests(text) == found


def test_the_checker_finds_folders_without_a_room() -> None:
    assert homeless({Path(), Path("core/ops"), Path("core/odds"), Path("helpers"), Path("ends")}) == [
        "core/odds",
        "ends",
    ]
