"""kvfw: KV-cache compression methods as compositions of named parts.

Importing this package imports no torch: every public name is loaded when it is first used. What is public, and where
it is defined, stands in ``__init__.pyi`` alone, one line per name.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Lines of the form "from MODULE import NAME as NAME".
_STUB = Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
_HOME_OF = {words[3]: words[1] for words in map(str.split, _STUB.splitlines()) if words[:1] == ["from"]}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Loads a public name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kvfw' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
