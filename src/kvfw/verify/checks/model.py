"""Checks a model's catalogue entry. Downloads nothing."""

from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.property import holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, Verdicts

MODELS = frozenset({Kind.MODEL})


@holds("model-target", "what stands behind the name can be called", MODELS)
def target(subject: Subject) -> Verdicts:
    if not callable(subject.part):
        yield Failed(f"{subject.spec.target} is something to call", type(subject.part).__name__)


@holds("model-facts", "its facts are lines for a listing", MODELS)
def facts(subject: Subject) -> Verdicts:
    given = subject.spec.facts
    broken = [key for key, text in given.items() if not str(text).strip() or "\n" in str(text)]
    if broken:
        yield Failed("facts of one line each", f"others: {', '.join(broken)}")
