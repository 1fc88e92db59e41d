"""Real installs: a wheelhouse filled once, a fresh environment, and copies of the sources to install from."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from kvfw.model.embedded.folders import cache_folder

ROOT = Path(__file__).parents[2]
PLUGINS = ("kvfw-keynorm", "kvfw-pairs", "kvfw-segments")
#: What the installed packages' tests and builds need besides their own dependencies.
ALSO = ("pytest", "setuptools>=77")


@dataclass(frozen=True)
class Installed:
    """An environment with kvfw and plugins in it.

    Args:
        python: its interpreter.
        sources: folder with the copies that were installed.
    """

    python: Path
    sources: Path

    def run(self, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs its Python with nothing of the running environment in sight."""
        hidden = ("PYTHONPATH", "KVFW_PLUGINS", "VIRTUAL_ENV")
        environ = {name: value for name, value in os.environ.items() if name not in hidden}
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=cwd if cwd is not None else self.sources,
            env={**environ, **variables},
        )

    def kvfw(self, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the installed command line."""
        return self.run("-m", "kvfw", *arguments, cwd=cwd, **variables)


def wheelhouse() -> Path:
    """A folder with wheels of all dependencies, pinned; filled with the user's own pip settings on first use."""
    constraints = ROOT / "constraints.txt"
    wanted = [*tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"], *ALSO]
    key = hashlib.sha256("\n".join([sys.version, *wanted, constraints.read_text("utf-8")]).encode()).hexdigest()[:12]
    folder = cache_folder() / "wheelhouse" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{key}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                target = Path(scratch) / "wheels"
                pip("wheel", "--quiet", "--constraint", str(constraints), "--wheel-dir", str(target), *wanted)
                target.rename(folder)
    return folder


def built(folder: Path) -> tuple[Path, Path]:
    """An sdist of the project, and a wheel that is built from the sdist alone."""
    sources = copied(folder / "sources")
    out = folder / "dist"
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(sdist))
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def install_alone(folder: Path, wheel: Path) -> Installed:
    """A new environment with one wheel in it, which finds all dependencies in the running environment.

    A plain path in a ``.pth`` file: what the running environment has installed in editable form is out of sight.
    """
    python = fresh(folder / "environment")
    pip("--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    (site,) = (folder / "environment").glob("**/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(python, folder)


def fresh(environment: Path) -> Path:
    """The interpreter of a new environment in which nothing is installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(folder: Path, wheels: Path, *more: Path) -> Installed:
    """A new environment under ``folder`` with kvfw, the example plugins and ``more``, from wheels and sources alone."""
    sources = copied(folder / "sources")
    python = fresh(folder / "environment")
    packages = [sources, *(sources / "plugins" / name for name in PLUGINS), *more]
    # Through variables, so that the environments in which packages are built are offline as well.
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    options = ["--quiet", "--no-compile", "--disable-pip-version-check", "--no-warn-script-location"]
    pip("--python", str(python), "install", *options, *map(str, packages), *ALSO, **offline)
    return Installed(python, sources)


def copied(folder: Path) -> Path:
    """The project's sources: builds leave files where they are run, and the checkout should not get them."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for name in ("src", "plugins"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    return folder


def pip(*arguments: str, **variables: str) -> None:
    """Runs pip; what it says is shown where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, f"pip {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
