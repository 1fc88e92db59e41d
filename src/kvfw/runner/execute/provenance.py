"""The environment of a run: recorded, but without effect on whether runs are comparable."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import kvfw
from kvfw.core.registry.plugins import OWN
from kvfw.core.registry.registry import Registry
from kvfw.runner.plan.config import EvalConfig

PACKAGES = ("kvfw", "torch", "transformers", "tokenizers", "numpy", "scipy")


def facts(config: EvalConfig, registry: Registry) -> dict[str, Any]:
    """Given settings, defaulted settings, versions, revision, hardware, plugins that provide parts, and UTC time."""
    values = config.model_dump(mode="json")
    given = config.model_fields_set
    return {
        "given": {name: value for name, value in values.items() if name in given},
        "defaulted": {name: value for name, value in values.items() if name not in given},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "revision": git_revision(Path(kvfw.__file__).parent),
        "hardware": hardware(),
        "plugins": {
            plugin.name: {"distribution": plugin.distribution, "version": plugin.version}
            for plugin in registry.plugins
            if plugin.specs
        },
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def changed_versions(first: Mapping[str, Any], resumed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Software differences between the first and the latest session of a run, one line each."""
    if not resumed:
        return ()
    before, now = first.get("versions", {}), resumed[-1].get("versions", {})
    lines = [f"{name} was {before[name]} and is now {now[name]}" for name in before if now.get(name) != before[name]]
    lines += _changed_plugins(first.get("plugins"), resumed[-1].get("plugins"))
    if first.get("revision") != resumed[-1].get("revision"):
        lines.append(f"kvfw's revision was {first.get('revision')} and is now {resumed[-1].get('revision')}")
    return tuple(f"the run is resumed with other software: {line}" for line in lines)


def _changed_plugins(before: object, now: object) -> list[str]:
    """One line per plugin that was added, removed or changed; none if a session did not record its plugins."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return []
    return [
        f"plugin {name} was {_origin(before.get(name))} and is now {_origin(now.get(name))}"
        for name in {**before, **now}
        if name != OWN and before.get(name) != now.get(name)  # kvfw's own version is compared with the packages'
    ]


def _origin(plugin: object) -> str:
    if not isinstance(plugin, Mapping):
        return "not there"
    return " ".join(str(plugin[key]) for key in ("distribution", "version") if plugin.get(key)) or "of unknown version"


def hardware() -> dict[str, Any]:
    """The hardware of the run."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_revision(folder: Path) -> str | None:
    """Git revision of kvfw's checkout, with ``+`` for uncommitted changes; None if kvfw is installed as a package."""
    try:
        # Fails if the folder only lies inside another project's checkout.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        revision = _git(folder, "rev-parse", "HEAD")
        return revision + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
