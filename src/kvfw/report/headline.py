"""The headline of a report: what was run and on what, in a few lines."""

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import JsonValue

from kvfw.analysis.sources import Report
from kvfw.report.texts import plain_text

SAID: Final = frozenset({"model", "task", "question_aware", "sinks", "recent", "compose", "amounts", "runs", "scores"})
"""Settings with a line of their own, or shown in the tables."""


def headline(report: Report) -> tuple[tuple[str, str], ...]:
    """Pairs of a label and a text, without those that are unknown."""
    config = report.results.config
    facts = [source.facts for source in report.sources]
    counts = sorted({row.n for row in report.results.rows})
    lines = (
        ("Model", _setting(config, "model")),
        ("Task", _setting(config, "task")),
        ("Mode", mode(config)),
        *((name.replace("_", " ").capitalize(), _setting(config, name)) for name in config if _own_line(name)),
        ("Trials per row", " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else ""),
        ("Kept always", _kept(config)),
        ("Hardware", _each(_hardware(fact) for fact in facts)),
        ("Versions", _each(_setting(fact, "versions") for fact in facts)),
        ("Revision", _each(_setting(fact, "revision") for fact in facts)),
        ("Started", _each(_setting(fact, "started") for fact in facts)),
        ("Runs", ", ".join(source.name for source in report.sources)),
    )
    return tuple((name, text) for name, text in lines if text)


def mode(config: Mapping[str, JsonValue]) -> str:
    """Whether the question was in the prompt when the cache was compressed."""
    aware = config.get("question_aware")
    if not isinstance(aware, bool):
        return ""
    if aware:
        return "question-aware: the question is in the prompt when the cache is compressed"
    return "question-agnostic: the question arrives after the cache was compressed, and stays exact"


def _setting(values: Mapping[str, JsonValue], name: str) -> str:
    value = values.get(name)
    return "" if value in (None, {}) else plain_text(value)


def _own_line(name: str) -> bool:
    return name not in SAID and not name.endswith("sha256")


def _kept(config: Mapping[str, JsonValue]) -> str:
    sinks, recent = _setting(config, "sinks"), _setting(config, "recent")
    return f"first {sinks} and last {recent} tokens" if sinks and recent else ""


def _hardware(fact: Mapping[str, JsonValue]) -> str:
    value = fact.get("hardware")
    if not isinstance(value, dict):
        return ""
    gpu, processor, cores = value.get("gpu"), value.get("processor"), value.get("cores")
    parts = [plain_text(part) for part in (gpu, processor or value.get("machine")) if part]
    return ", ".join([*parts, *([f"{plain_text(cores)} cores"] if cores else [])])


def _each(texts: Iterable[str]) -> str:
    """The different texts, once each."""
    return "; ".join(dict.fromkeys(text for text in texts if text))
