"""Settings and facts as flat names and short texts, to compare and to show."""

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
    """The value as JSON, "nothing" where there is none; 4 and 4.0 agree, true and 1 do not."""
    return json.dumps(_whole(settings[name]), sort_keys=True, ensure_ascii=False) if name in settings else "nothing"


def plain_text(value: JsonValue) -> str:
    """The value as people write it: lists by commas, no quotes, a dash for null."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(plain_text, value)) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain_text(item)}" for name, item in value.items()) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _whole(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
