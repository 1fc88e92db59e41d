"""Resolves a model's name: an embedded model, a plugin's, a local folder, or a hub id ``owner/model``."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.errors import KvfwError, RunError, UnknownNameError, UnsupportedError
from kvfw.model.embedded.folders import EMBEDDED, embedded_folder

SourceKind = Literal["embedded", "plugin", "folder", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        name: as the user gave it.
        location: the folder (an embedded model's may not exist yet), the hub id, or the plugin's target that returns
            the folder.
        kind: ``embedded``, ``plugin``, ``folder`` or ``hub``.
        part: the plugin's registration.
    """

    name: str
    location: str
    kind: SourceKind
    part: PartSpec | None = None


def resolve_model(name: str, registry: Registry | None = None) -> ModelSource:
    """Resolves ``name`` without using the network or reading the model.

    In this order: an embedded model's name; the name of a plugin's model (in ``registry``; by default the installed
    ones); a local folder (``~`` is expanded) with ``config.json`` and safetensors weights; a hub id ``owner/model``,
    whose existence is not checked here.

    Raises:
        UnknownNameError: it is none of these, or two plugins claim the name.
        UnsupportedError: a folder with a configuration but without safetensors weights.
    """
    if name in EMBEDDED:
        return ModelSource(name, str(embedded_folder(EMBEDDED[name])), "embedded")
    catalogue = registry if registry is not None else default_registry()
    if catalogue.claimed(Kind.MODEL, name):
        part = catalogue.get(Kind.MODEL, name)
        return ModelSource(name, part.target, "plugin", part)
    if (folder := _as_folder(name)) is not None:
        return _folder_source(name, folder)
    if _HUB_ID.fullmatch(name):
        return ModelSource(name, name, "hub")
    embedded = [model.name for model in EMBEDDED.values() if model.kind == "language"]
    brought = [part.name for part in catalogue.of_kind(Kind.MODEL) if part.name not in EMBEDDED]
    close = difflib.get_close_matches(name, [*embedded, *brought], n=2, cutoff=0.5)
    guess = f"; did you mean {' or '.join(close)}?" if close else ""
    plugins = f"as one of a plugin ({', '.join(brought)}), " if brought else ""
    raise UnknownNameError(
        f"no model {name!r}{guess}\n"
        f"A model is given as an embedded one ({', '.join(embedded)}), {plugins}as a folder with config.json and "
        "safetensors weights, or as a hub id with its owner (owner/model)."
    )


def lone_config(name: str) -> ModelSource | None:
    """The source for a configuration file, or a folder with one, that need not have weights."""
    path = Path(name).expanduser()
    is_one = name not in EMBEDDED and ((path.suffix == ".json" and path.is_file()) or (path / "config.json").is_file())
    return ModelSource(name, str(path.resolve()), "folder") if is_one else None


def plugin_folder(source: ModelSource) -> Path:
    """The folder of a plugin's model; the plugin's function may fetch or make it first.

    Raises:
        RequestError: the function cannot be imported.
        RunError: it failed, or returned no folder of a model.
    """
    assert source.part is not None
    who = f"model {source.name!r} of {source.part.provider}"
    find = source.part.load()
    if not callable(find):
        raise UnsupportedError(f"{who}: {source.part.target} is no function that takes the name and returns the folder")
    try:
        folder = Path(find(source.name))
    except KvfwError:
        raise
    except (Exception, SystemExit) as error:
        raise RunError(f"{who} could not be had: {type(error).__name__}: {error}") from error
    try:
        _folder_source(str(folder), folder)
    except KvfwError as error:
        raise RunError(f"{who} is not usable: {error}") from error
    return folder


def _as_folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):  # no such home folder, or characters no path can have
        return None
    return path if is_folder and name else None


def _folder_source(name: str, folder: Path) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise UnknownNameError(f"the folder {name!r} holds no model: it has no config.json")
    if not any((folder / file).is_file() for file in _WEIGHTS):
        raise UnsupportedError(
            f"the folder {name!r} has no safetensors weights ({' or '.join(_WEIGHTS)}); only those are read: "
            "load the model elsewhere and save it with save_pretrained"
        )
    return ModelSource(name, str(folder.resolve()), "folder")
