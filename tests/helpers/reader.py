"""An environment in which the commands of the documentation can run without touching this one."""

import os
import site
import subprocess
import venv
from collections.abc import Mapping
from pathlib import Path

#: What the commands of a page find on the path. pip installs without a network and without building apart.
SCRIPTS = {
    "kvfw": 'exec "{python}" -m kvfw "$@"',
    "pytest": 'exec "{python}" -m pytest "$@"',
    "pip": '[ "$1" = install ] && shift && exec "{python}" -m pip --disable-pip-version-check install --quiet '
    '--no-index --no-deps --no-build-isolation "$@"\nexec "{python}" -m pip "$@"',
}


def reader_environment(folder: Path) -> Mapping[str, str]:
    """Environment variables of somebody who follows a page: a fresh virtual environment on top of this one.

    Args:
        folder: where the virtual environment goes.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import site; print(site.getsitepackages()[0])"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (Path(own) / "outer.pth").write_text("\n".join(lines) + "\n")
    for name, command in SCRIPTS.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{command.format(python=python)}\n")
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KVFW_PLUGINS"))}
    return {**kept, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "110", "VIRTUAL_ENV": str(folder)}
