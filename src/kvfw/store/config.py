"""``config.json``: which experiment a folder holds and in what environment it ran."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from kvfw.core.contracts.records import SCHEMA, Frozen
from kvfw.core.contracts.settings import flat_settings, setting_text
from kvfw.errors import RequestError, StoreError
from kvfw.store.atomic import cause, to_json, write_atomic

CONFIG_NAME = "config.json"

JsonObject = dict[str, JsonValue]


class RunConfig(Frozen):
    """What ``config.json`` holds.

    Attributes:
        schema_version: 1 dates from when every task had contexts, depths and seeds; such a run can be reported but not
            resumed.
        settings: decide whether two trials are comparable; checked on resume.
        facts: versions, revision, hardware, time …; recorded, never compared.
        resumed: the facts of each later session that added trials, in order.
    """

    schema_version: Literal[1, 2] = Field(default=SCHEMA, alias="schema")
    settings: JsonObject
    facts: JsonObject = Field(default_factory=dict)
    resumed: tuple[JsonObject, ...] = ()


def as_json_object(data: Mapping[str, object], what: str) -> JsonObject:
    """The data as plain JSON values (tuples become lists). Raises RequestError for NaN and non-JSON values."""
    try:
        plain: JsonObject = json.loads(to_json(dict(data)))
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what} must be plain JSON values: {error}") from error
    return plain


def read_config(folder: Path) -> RunConfig | None:
    """The configuration of a run folder, None if it has none. Raises StoreError for an unreadable or invalid file."""
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
    """Writes ``config.json`` atomically. Raises StoreError if that fails."""
    data = config.model_dump(mode="json", by_alias=True)
    write_atomic(folder / CONFIG_NAME, to_json(data).encode())


def differences(stored: JsonObject, asked: JsonObject) -> tuple[str, ...]:
    """One line per setting that differs, with both values; nested settings by dotted name."""
    old, new = dict(flat_settings(stored)), dict(flat_settings(asked))
    texts = {name: (setting_text(old, name), setting_text(new, name)) for name in {**old, **new}}
    return tuple(f"{name}: {there} there, {here} asked" for name, (there, here) in texts.items() if there != here)


def first_fault(error: ValidationError) -> str:
    """Pydantic's first complaint, on one line and without the offending input."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place}: {fault['msg']}" if place else fault["msg"]
