"""Saves compressed caches to files and loads them."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from kvfw.errors import OptionError, RunError, UnsupportedError
from kvfw.model.cache.cache import CompressedCache
from kvfw.model.cache.captured import Captured
from kvfw.model.cache.coded import CodedStorage
from kvfw.model.cache.fingerprint import differences, fingerprint, made_by
from kvfw.model.cache.layer import CompressedLayer
from kvfw.model.cache.stored import read
from kvfw.model.inspect.adapters import active_adapters
from kvfw.model.inspect.layers import attention_modules
from kvfw.model.inspect.support import check_is_model, fresh_layers, runs_on
from kvfw.store.atomic import cause, write_atomic

#: Key of the file's only metadata entry: the fingerprint of the model that made the cache; by layer its kind and its
#: numbers of tokens; seconds spent compressing each layer.
HEADER = "kvfw_cache"
VERSION = 4
#: Version 2 held heads of unequal size padded; version 3 had no codes.
READABLE = (2, 3, VERSION)


class SavedCacheError(RunError):
    """A file that is no complete saved cache."""


def save_cache(cache: CompressedCache, path: str | Path) -> None:
    """Writes a compressed cache to a safetensors file, with all that is needed to continue and to check its model.

    Keys, values, positions, masses and biases of every layer, sliding-window layers, tokens seen, the next position;
    the last queries and column sums if the block keeps compressing. The file is written completely or not at all.

    Args:
        cache: the cache that ``kvfw.attach`` yielded, during the block or after it.
        path: the file; an existing one is replaced.

    Raises:
        UnsupportedError: it is no cache of kvfw, nothing was compressed in it, or its model is no longer in memory.
        OptionError: not a path, or the path of a folder.
        StoreError: the file cannot be written.
    """
    if not isinstance(cache, CompressedCache):
        raise UnsupportedError(
            f"save_cache takes a cache that kvfw.attach or kvfw.load_cache gave, not {type(cache).__name__}"
        )
    file = _file("save_cache", path)
    if os.path.isdir(file):  # noqa: PTH112 (false where the name alone is an error)
        raise OptionError(f"save_cache was given the folder {path}; add the name of a file in it")
    write_atomic(file, to_bytes(cache))


def load_cache(model: PreTrainedModel, path: str | Path) -> CompressedCache:
    """Reads a cache that :func:`save_cache` wrote, onto the model's device.

    Continue with ``kvfw.attach(model, cache=cache)``: the tokens are the same as if the saving block had continued.

    Args:
        model: the model that made it, or one loaded from the same weights with the same dtype.
        path: the file.

    Raises:
        UnsupportedError: another model made it; the message names what differs. Or ``model`` is no model.
        OptionError: not a path.
        SavedCacheError: the file cannot be read, or :func:`save_cache` did not write it.
    """
    check_is_model(model, "load_cache")
    file = _file("load_cache", path)
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise SavedCacheError(f"cannot read a saved cache from {path}: {cause(error)}") from None
    try:
        with safe_open(str(path), framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
            header = _header(opened.metadata(), tensors)
            if said := differences(dict(header["model"]), fingerprint(model)):
                raise UnsupportedError(
                    f"{path} was saved from another model: {said}. Load it for that one, or run the prompt again"
                )
        cache = _rebuilt(model, header, tensors)
    except SafetensorError as error:
        raise SavedCacheError(
            f"{path} is no saved cache, or only a part of one ({error}); save it again with kvfw.save_cache"
        ) from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SavedCacheError(
            f"{path} is not the file that kvfw.save_cache wrote: {type(error).__name__}: {error}; save it again"
        ) from None
    cache.made_for = model
    cache.adapters = active_adapters(model)
    return cache


def _file(function: str, path: str | Path) -> Path:
    """The path, or an OptionError if it cannot be that of a file."""
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise OptionError(f"{function} was given the path {path!r}; it is the name of a file, as text or as a Path")
    return Path(path)


def to_bytes(cache: CompressedCache) -> bytes:
    """The cache as a safetensors file.

    Raises:
        UnsupportedError: nothing in the cache is compressed, or the model that made it is no longer in memory.
    """
    model = cache.made_for
    if model is None:
        raise UnsupportedError("the model that made this cache is not in memory any more; save the cache while it is")
    cache.check_whole()
    tensors: dict[str, Tensor] = {}
    layers = []
    for index, layer in enumerate(cache.layers):
        own, about = _compressed_parts(layer, index) if isinstance(layer, CompressedLayer) else _sliding_parts(layer)
        tensors |= {f"{index}.{name}": part.detach().cpu().contiguous() for name, part in own.items()}
        layers.append(about)
    header = {
        "version": VERSION,
        "model": made_by(cache, model),
        "layers": layers,
        "compress_s": cache.compress_s,
        "probe_s": cache.probe_s,
        "waited": cache.waited,
    }
    return save(tensors, {HEADER: json.dumps({**header, "sha256": checksum(header, tensors)})})


def checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of header and tensors, so that no damaged number goes unnoticed."""
    # The header is hashed as it will be read.
    found = hashlib.sha256(json.dumps(json.loads(json.dumps(header)), sort_keys=True).encode())
    for name, part in sorted(tensors.items()):
        found.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
        found.update(part.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _header(metadata: Mapping[str, str] | None, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The content of the metadata entry; raises ValueError if it is missing, of another version or damaged."""
    if not metadata or HEADER not in metadata:
        raise ValueError("it holds tensors, but nothing says they are a cache")
    found: dict[str, Any] = json.loads(metadata[HEADER])
    if found["version"] not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise ValueError(f"it has format version {found['version']}, and this kvfw reads versions {known}")
    if found.pop("sha256") != checksum(found, tensors):
        raise ValueError("its content is damaged: the checksum is not that of the numbers in it")
    return found


def _compressed_parts(layer: CompressedLayer, index: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not layer.compressed:
        raise UnsupportedError(
            f"layer {index} of this cache is empty or its prompt is not over; save it once the prompt was compressed"
        )
    tensors, numbers = layer.captured.written()
    return {**tensors, **layer.storage.written()}, {"kind": "compressed", **numbers}


def _sliding_parts(layer: CacheLayerMixin) -> tuple[dict[str, Tensor], dict[str, Any]]:
    untyped: Any = layer
    about = {"kind": "sliding", "seen": untyped.cumulative_length, "window": untyped.sliding_window}
    return {"keys": untyped.keys, "values": untyped.values}, about


def _rebuilt(model: PreTrainedModel, header: dict[str, Any], tensors: dict[str, Tensor]) -> CompressedCache:
    """The cache; raises KeyError, TypeError or ValueError if header, tensors and model do not fit together."""
    layers: list[CacheLayerMixin] = []
    places = [runs_on(module) for module in attention_modules(model)]
    parts = zip(list(header["layers"]), places, fresh_layers(model.config), strict=True)
    for i, (about, place, empty) in enumerate(parts):
        own = {name.removeprefix(f"{i}."): x.to(place) for name, x in tensors.items() if name.startswith(f"{i}.")}
        layers.append(_compressed(own, about, i) if about["kind"] == "compressed" else _sliding(empty, own, about))
    cache = CompressedCache(layers)
    cache.compress_s = [float(seconds) for seconds in header["compress_s"]]
    cache.probe_s, cache.waited = float(header.get("probe_s", 0.0)), bool(header.get("waited", False))
    return cache


def _compressed(own: dict[str, Tensor], about: dict[str, Any], index: int) -> CompressedLayer:
    storage = CodedStorage.read(own, index) if "codec" in own else read(own)
    if own["tokens"].shape != own["next"].shape or own["tokens"].shape != (storage.rows,):
        raise ValueError(f"it has {storage.rows} rows of slots and {tuple(own['tokens'].shape)} numbers of tokens")
    return CompressedLayer.of_storage(storage, Captured.read(own, {"compressed": True, **about}))


def _sliding(empty: CacheLayerMixin, own: dict[str, Tensor], about: dict[str, Any]) -> CacheLayerMixin:
    layer: Any = empty
    if about["window"] != layer.sliding_window:
        raise ValueError(f"its window of {about['window']} tokens is not the model's {layer.sliding_window}")
    layer.lazy_initialization(own["keys"], own["values"])
    layer.keys, layer.values, layer.cumulative_length = own["keys"], own["values"], int(about["seen"])
    return empty
