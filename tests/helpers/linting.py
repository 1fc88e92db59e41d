"""Ruff as the author of a plugin runs it, by the settings of the plugin's own folder."""

import subprocess
import sys
from pathlib import Path


def linted(folder: Path) -> None:
    """Has ruff look at everything in a folder, by the settings it finds there."""
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
