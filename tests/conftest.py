"""Fixtures that every room's tests may use. Shapes and types of tensors are checked where parts are tested."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import jaxtyping
import pytest
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from kvfw.model.load.load import LoadedModel

SOURCE = Path(__file__).parents[1] / "src"

#: Modules that annotate shapes. (Not all of kvfw: beartype does not understand pydantic's generic classes.)
SHAPED = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if "from jaxtyping import" in path.read_text(encoding="utf-8")
)
# Before torch is imported: see kvfw.cli.main.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# Beside other test processes each keeps to one core; so do the processes it starts.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# No time limit per example: on a busy machine it would measure the neighbours.
hypothesis.settings.register_profile("busy", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("busy")
# Before any of them is imported.
install_import_hook(SHAPED, "beartype.beartype")

#: Rooms whose tests check the shapes of tensors. The others drive the same code through whole evaluations and
#: properties of parts, where the checks would take a third of the time.
CHECKED = tuple(Path(__file__).parent / room for room in ("core", "methods", "model"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    checked = any(item.path.is_relative_to(room) for room in CHECKED)
    jaxtyping.config.update("jaxtyping_disable", not checked)


class _Frozen:
    """What is imported stays: garbage is not looked for in it again (statsmodels does so at every call)."""

    def __init__(self) -> None:
        self.modules = 0

    def pytest_runtest_teardown(self) -> None:
        if len(sys.modules) > self.modules:
            gc.freeze()
            self.modules = len(sys.modules)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Frozen())


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """The embedded language model in float32 on the CPU, shared by all tests: leave it as you found it."""
    from kvfw.model.load.load import load_model

    return load_model("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a tokenizer, saved in a folder."""
    from helpers.tiny_folder import write_tiny_folder

    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")
