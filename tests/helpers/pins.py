"""The versions that the constraints files pin."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]


def pinned(constraints: str) -> dict[str, Version]:
    """The packages of a file of pins, by name."""
    lines = (ROOT / constraints).read_text("utf-8").splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pairs}
