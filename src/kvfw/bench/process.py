"""Runs Python in a process of its own."""

import os
import subprocess
import sys

from kvfw.errors import RunError


def run_python(what: str, *arguments: str, stdin: str = "", **variables: str) -> str:
    """Standard output of a Python process; ``variables`` are added to its environment.

    Raises:
        RunError: it failed; the message has the last line of its standard error.
    """
    command, environ = [sys.executable, *arguments], {**os.environ, **variables}
    done = subprocess.run(command, env=environ, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise RunError(f"{what} failed with exit code {done.returncode}: {said[-1]}")
    return done.stdout
