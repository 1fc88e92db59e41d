"""The result of a verification, as text and as data."""

import textwrap
from dataclasses import dataclass
from typing import Any

from kvfw.verify.findings.verdict import Failed, NotApplicable, Passed
from kvfw.verify.suite import Finding, PartReport

SCHEMA = 1


@dataclass(frozen=True)
class VerifyReport:
    """Reports on all parts of one name, at least one."""

    parts: tuple[PartReport, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(part.passed for part in self.parts)

    def __str__(self) -> str:
        """One line per property; a failure says what was expected and what was seen."""
        return "\n\n".join("\n".join(_lines(part)) for part in self.parts)

    def data(self) -> dict[str, Any]:
        """The object that ``kvfw verify --json`` prints."""
        return {"schema": SCHEMA, "passed": self.passed, "parts": [_part_data(part) for part in self.parts]}


def _lines(part: PartReport) -> list[str]:
    spec = part.spec
    lines = [f"{part.text}  ({spec.kind}, {spec.provider})"]
    width = max(len(finding.property.id) for finding in part.findings)
    for finding in part.findings:
        lines += _finding_lines(finding, width)
    verdicts = [finding.verdict for finding in part.findings]
    passed = sum(isinstance(verdict, Passed) for verdict in verdicts)
    idle = sum(isinstance(verdict, NotApplicable) for verdict in verdicts)
    return [*lines, f"{passed} passed, {len(part.failed)} failed, {idle} not applicable"]


def _finding_lines(finding: Finding, width: int) -> list[str]:
    prop, verdict = finding.property, finding.verdict
    start = f"{prop.id:<{width}}  {prop.statement}"
    if isinstance(verdict, Failed):
        return [f"  FAILED  {start}", *_wrapped("expected", verdict.expected), *_wrapped("seen", verdict.seen)]
    if isinstance(verdict, NotApplicable):
        return [f"  n/a     {start}: {verdict.reason}"]
    return [f"  passed  {start}", *(_wrapped("", verdict.note) if verdict.note else [])]


def _wrapped(label: str, text: str) -> list[str]:
    head = f"          {label + ': ' if label else ''}"
    return textwrap.wrap(" ".join(text.split()), 116, initial_indent=head, subsequent_indent=" " * 12)


def _part_data(part: PartReport) -> dict[str, Any]:
    spec = part.spec
    return {
        "kind": spec.kind.value,
        "name": spec.name,
        "text": part.text,
        "provider": spec.provider,
        "passed": part.passed,
        "properties": [_finding_data(finding) for finding in part.findings],
    }


def _finding_data(finding: Finding) -> dict[str, str]:
    verdict = finding.verdict
    found = {"id": finding.property.id, "statement": finding.property.statement}
    if isinstance(verdict, Failed):
        return found | {"outcome": "failed", "expected": verdict.expected, "seen": verdict.seen}
    if isinstance(verdict, NotApplicable):
        return found | {"outcome": "not applicable", "reason": verdict.reason}
    return found | {"outcome": "passed"} | ({"note": verdict.note} if verdict.note else {})
