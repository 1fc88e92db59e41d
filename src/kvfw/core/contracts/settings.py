"""Settings as they are compared between runs: nested ones by dotted name, equal values as equal text."""

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue


def flat_settings(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Nested settings by dotted name."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def setting_text(settings: Mapping[str, JsonValue], name: str) -> str:
    """The value as JSON, "nothing" if there is none. 4 and 4.0 give the same text, true and 1 do not."""
    return json.dumps(_whole(settings[name]), sort_keys=True, ensure_ascii=False) if name in settings else "nothing"


def _whole(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
