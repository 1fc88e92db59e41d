"""Type checking as somebody outside this project does it: ``mypy --strict``, none of the project's own settings."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[2]
#: Shared by all who check from outside: torch is read once. (The project's own cache has other settings.)
CACHE = ROOT / ".mypy_cache" / "outside"


def mypy(
    arguments: Sequence[str | Path], *, folder: Path, paths: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs mypy in a folder; ``paths`` are where packages are looked for besides the installed ones."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", CACHE, "--no-color-output", *arguments]
    already = filter(None, [os.environ.get("MYPYPATH")])
    CACHE.mkdir(parents=True, exist_ok=True)
    # One at a time: mypy does not expect another one to write the same cache.
    with FileLock(CACHE / "kvfw.lock"):
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "MYPYPATH": os.pathsep.join([*map(str, paths), *already])},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
