"""Files that options name."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from kvfw.core.parts.part import with_held


@dataclass(frozen=True)
class FileOption:
    """Marks an option that names a file on which results depend: ``Annotated[str, FileOption()]``.

    ``words`` are values that name no file.
    """

    words: tuple[str, ...] = ()


def file_digests(parts: Iterable[object]) -> dict[str, str]:
    """SHA-256 of every file that the parts, or parts they hold, name in their options, by its path as written."""
    found = {}
    for part in with_held(parts):
        for key, info in type(part).model_fields.items() if isinstance(part, BaseModel) else ():
            for mark in info.metadata:
                value = getattr(part, key)
                if isinstance(mark, FileOption) and value is not None and value not in mark.words:
                    found[str(value)] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
    return dict(sorted(found.items()))
