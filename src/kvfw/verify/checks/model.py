"""What holds of a catalogue entry for a model. Nothing is downloaded."""

from kvfw.core.parts.spec import Kind
from kvfw.verify.findings.property import Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, Verdict

MODELS = frozenset({Kind.MODEL})


def target(subject: Subject) -> Verdict:
    """What stands behind the name can be called."""
    if not callable(subject.part):
        return Failed(f"{subject.spec.target} is something to call", type(subject.part).__name__)
    return PASSED


def facts(subject: Subject) -> Verdict:
    """Facts are shown as they are, one a line."""
    given = subject.spec.facts
    broken = [key for key, text in given.items() if not str(text).strip() or "\n" in str(text)]
    return Failed("facts of one line each", f"others: {', '.join(broken)}") if broken else PASSED


PROPERTIES = (
    Property("model-target", "what stands behind the name can be called", MODELS, target),
    Property("model-facts", "its facts are lines for a listing", MODELS, facts),
)
