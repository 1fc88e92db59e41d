"""Version ranges for a plugin's dependencies, taken from kvfw's own so that they are written once."""

import re
from collections.abc import Container
from importlib.metadata import requires, version

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<range>[^;]*)")


def ranges(names: Container[str]) -> list[str]:
    """Sorted requirements such as ``"torch>=2.13"`` for those of the names that the installed kvfw declares."""
    declared = [found for line in requires("kvfw") or () if (found := _REQUIREMENT.match(line)) is not None]
    return sorted(f"{found['name']}{found['range'].strip()}" for found in declared if found["name"].lower() in names)


def imported_ranges(source: str) -> list[str]:
    """Requirements for a module's imports, except kvfw itself."""
    return ranges(set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE)))


def own_range(installed: str | None = None) -> str:
    """The range of kvfw versions with the same interfaces: ``0.1.x`` before 1.0, then ``1.x``."""
    found = re.match(r"(\d+)(?:\.(\d+))?", installed or version("kvfw"))
    major, minor = (int(part or 0) for part in found.groups()) if found is not None else (0, 1)
    return f"kvfw>={major}.{minor},<{major}.{minor + 1}" if major == 0 else f"kvfw>={major}.{minor},<{major + 1}"
