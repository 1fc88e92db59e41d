"""How a part presents itself: contract, options, docs."""

import inspect

from pydantic import BaseModel, ValidationError

from kvfw.core.compose.build import build_part
from kvfw.core.compose.syntax import parse_part
from kvfw.core.compress.stages import Stage
from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.parts import Merger, Scorer, Selector, Space
from kvfw.core.contracts.task import Task
from kvfw.core.parts.part import Method, Part, StageForm, default_text
from kvfw.core.parts.spec import Kind
from kvfw.errors import SpecError
from kvfw.verify.findings.property import EVERY_KIND, Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import PASSED, Failed, NotApplicable, Verdict

#: Every kind but models: a model is an entry of a catalogue, not a part with options.
PARTS = EVERY_KIND - {Kind.MODEL}
#: What a part of a kind has to be able to do, and how that is said.
CONTRACTS: dict[Kind, tuple[type | tuple[type, ...], str]] = {
    Kind.SCORER: (Scorer, "`needs` and `score`"),
    Kind.SELECTOR: (Selector, "`select`"),
    Kind.MERGER: (Merger, "`merge`"),
    Kind.SPACE: (Space, "`forward` and `inverse`"),
    Kind.STAGE: (Stage, "`needs`, `moves_positions`, `consumes_rest`, `run` and `finish`"),
    Kind.METHOD: (Method, "`recipe`, as a subclass of kvfw.Method"),
    Kind.TASK: (Task, "`scores`, `check`, `samples` and `score`"),
    Kind.METRIC: ((Metric, DerivedMetric), "`info`, and `measure` or `derive`"),
}


def contract(subject: Subject) -> Verdict:
    """Whether the methods are there; that they do what they should is for the other properties."""
    kinds, said = CONTRACTS[subject.spec.kind]
    if not isinstance(subject.part, kinds):
        return Failed(f"a {subject.spec.kind} has {said}", f"{type(subject.part).__name__} lacks some of them")
    if isinstance(subject.part, StageForm) != (subject.spec.kind is Kind.STAGE):
        return Failed("kvfw's base class for stage forms on stages, and on stages only", type(subject.part).__name__)
    if subject.spec.kind is Kind.SCORER:
        needs_of(subject.scorer)
    return PASSED


def frozen(subject: Subject) -> Verdict:
    """Hash and equality, an option that cannot be set, an option that does not exist."""
    part = subject.part
    if not isinstance(part, Part):
        return Failed("a subclass of kvfw.Part", type(part).__name__)
    cls = type(part)
    values = {key: getattr(part, key) for key in cls.model_fields}
    twin = cls(**values)
    if hash(part) != hash(twin) or part != twin:
        return Failed("parts of equal options that are equal and have one hash", "two different ones")
    for key in (*cls.model_fields, "kvfw_no_such_option"):
        try:
            setattr(part, key, values.get(key))
        except (ValidationError, ValueError, AttributeError, TypeError):
            continue
        return Failed("options that cannot be changed", f"{key} could be set")
    return PASSED


def extra_refused(subject: Subject) -> Verdict:
    """An option that does not exist, in a text and in Python."""
    name, kind = subject.spec.name, subject.spec.kind
    try:
        build_part(kind, f"{name}(kvfw_no_such_option=1)", subject.registry)
    except SpecError:
        pass
    else:
        return Failed("an error for an option that does not exist", f"{name}(kvfw_no_such_option=1) is accepted")
    cls = type(subject.options)
    values = {key: getattr(subject.part, key) for key in cls.model_fields}
    try:
        cls(**values, kvfw_no_such_option=1)  # type: ignore[call-arg] # the mistake is the point
    except ValidationError:
        return PASSED
    return Failed("an error for an option that does not exist", f"{cls.__name__}(kvfw_no_such_option=1) is accepted")


def round_trip(subject: Subject) -> Verdict:
    """The canonical text, read again; and every option written out."""
    kind, registry = subject.spec.kind, subject.registry
    again = build_part(kind, subject.built.text, registry).text
    if again != subject.built.text:
        return Failed(f"{subject.built.text} read back as itself", again)
    fields = type(subject.options).model_fields
    # What the grammar cannot say, such as a default with spaces, or None where nothing is written for it, stays out.
    plain = {key: default_text(info) for key, info in fields.items() if default_text(info) != "required"}
    given = {option.key: str(option.value) for option in parse_part(subject.built.text).options}
    spelt = [f"{key}={given.get(key, text)}" for key, text in plain.items() if _spells(text)]
    spelt += [f"{key}={text}" for key, text in given.items() if key not in plain]
    if not spelt:
        return NotApplicable("it has no options") if not fields else PASSED
    full = f"{subject.spec.name}({','.join(spelt)})"
    again = build_part(kind, full, registry).text
    return PASSED if again == subject.built.text else Failed(f"{full} read as {subject.built.text}", again)


def _spells(text: str) -> bool:
    try:
        parse_part(f"part(option={text})")
    except SpecError:
        return False
    return True


def docs(subject: Subject) -> Verdict:
    """A docstring of its own and a summary of one line."""
    summary = subject.spec.summary
    if not summary.strip() or "\n" in summary:
        return Failed("a summary of one line in its PartSpec", repr(summary[:60]))
    if subject.spec.kind is Kind.MODEL:
        return PASSED
    cls = type(subject.part)
    own = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    if not own or own == inspect.cleandoc(BaseModel.__doc__ or ""):
        return Failed("a docstring that says what the part does, best with formula and source", "none")
    return PASSED


PROPERTIES = (
    Property("contract", "the part has what its kind asks for", PARTS, contract),
    Property("frozen", "parts are immutable, and hash by their options", PARTS, frozen),
    Property("extra-options", "an option that does not exist is refused", PARTS, extra_refused),
    Property("round-trip", "its canonical text reads back as the same part", PARTS, round_trip),
    Property("docs", "it has a docstring and a summary of one line", EVERY_KIND, docs),
)
