"""``config.json``: which experiment a folder holds, and under what circumstances it was run."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from kvfw.core.contracts.records import SCHEMA, Frozen
from kvfw.errors import RequestError, StoreError
from kvfw.store.atomic import cause, to_json, write_atomic

CONFIG_NAME = "config.json"

JsonObject = dict[str, JsonValue]


class RunConfig(Frozen):
    """What ``config.json`` holds.

    Attributes:
        schema_version: 1 in folders written when every task had contexts, depths and seeds; such a run can be read and
            reported, not gone on with.
        settings: what decides whether two trials may stand in one table; compared on resume.
        facts: versions, revision, hardware, time …; kept, never compared.
        resumed: the facts of each later session that added trials, in order.
    """

    schema_version: Literal[1, 2] = Field(default=SCHEMA, alias="schema")
    settings: JsonObject
    facts: JsonObject = Field(default_factory=dict)
    resumed: tuple[JsonObject, ...] = ()


def as_json_object(data: Mapping[str, object], what: str) -> JsonObject:
    """The same data as plain JSON values (tuples become lists).

    Raises:
        RequestError: a value JSON does not have, NaN and infinity included.
    """
    try:
        plain: JsonObject = json.loads(to_json(dict(data)))
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what} must be plain JSON values: {error}") from error
    return plain


def read_config(folder: Path) -> RunConfig | None:
    """The configuration of a run folder, or None if the folder has none.

    Raises:
        StoreError: the file is there and cannot be read or understood.
    """
    path = folder / CONFIG_NAME
    try:
        return RunConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {cause(error)}") from error
    except ValidationError as error:
        raise StoreError(f"{path} is no run configuration: {first_fault(error)}") from error


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json`` atomically. Raises StoreError if it cannot be written."""
    data = config.model_dump(mode="json", by_alias=True)
    write_atomic(folder / CONFIG_NAME, to_json(data).encode())


def differences(stored: JsonObject, asked: JsonObject) -> tuple[str, ...]:
    """One line per setting that differs, with both values; nested settings by dotted name."""
    old, new = dict(_flat(stored)), dict(_flat(asked))
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        f"{name}: {_shown(old, name)} there, {_shown(new, name)} asked"
        for name in names
        if _shown(old, name) != _shown(new, name)
    )


def first_fault(error: ValidationError) -> str:
    """The first thing pydantic found wrong, in one line without the offending input."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place}: {fault['msg']}" if place else fault["msg"]


def _flat(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(settings: Mapping[str, JsonValue], name: str) -> str:
    """The value as canonical JSON, so that 4 and 4.0 agree while true and 1 do not."""
    return _canonical(settings[name]) if name in settings else "nothing"


def _canonical(value: JsonValue) -> str:
    return json.dumps(_whole_floats_as_ints(value), sort_keys=True, ensure_ascii=False)


def _whole_floats_as_ints(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_floats_as_ints(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole_floats_as_ints(item) for name, item in value.items()}
    return value
