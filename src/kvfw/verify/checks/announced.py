"""Checks how a part presents itself: contract, options, docs."""

import inspect

from pydantic import BaseModel, ValidationError

from kvfw.core.compose.build import build_part
from kvfw.core.compose.syntax import parse_part
from kvfw.core.compress.stages import Stage
from kvfw.core.contracts.blame import needs_of
from kvfw.core.contracts.codec import Codec
from kvfw.core.contracts.metric import DerivedMetric, Metric
from kvfw.core.contracts.parts import Allocator, Merger, Refiner, Scorer, Selector, Space
from kvfw.core.contracts.task import Task
from kvfw.core.parts.part import Method, Part, StageForm, default_text
from kvfw.core.parts.spec import Kind
from kvfw.errors import SpecError
from kvfw.verify.findings.property import EVERY_KIND, holds
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Verdicts

#: Every kind but models: a model is a catalogue entry, not a part with options.
PARTS = EVERY_KIND - {Kind.MODEL}
#: The types a part of a kind must implement, and their members for the message.
CONTRACTS: dict[Kind, tuple[type | tuple[type, ...], str]] = {
    Kind.SCORER: (Scorer, "`needs` and `score`"),
    Kind.SELECTOR: (Selector, "`select`"),
    Kind.MERGER: (Merger, "`merge`"),
    Kind.SPACE: (Space, "`forward` and `inverse`"),
    Kind.ALLOCATOR: (Allocator, "`allocate`"),
    Kind.REFINER: (Refiner, "`needs` and `refine`"),
    Kind.CODEC: (Codec, "`needs`, `encode` and `decode`"),
    Kind.STAGE: (Stage, "`needs`, `moves_positions`, `consumes_rest`, `run` and `finish`"),
    Kind.METHOD: (Method, "`recipe`, as a subclass of kvfw.Method"),
    Kind.TASK: (Task, "`scores`, `check`, `samples` and `score`"),
    Kind.METRIC: ((Metric, DerivedMetric), "`info`, and `measure` or `derive`"),
}


@holds("contract", "the part has what its kind asks for", PARTS)
def contract(subject: Subject) -> Verdicts:
    """Checks only that the methods exist; the other properties check what they do."""
    kinds, said = CONTRACTS[subject.spec.kind]
    if not isinstance(subject.part, kinds):
        yield Failed(f"a {subject.spec.kind} has {said}", f"{type(subject.part).__name__} lacks some of them")
    if isinstance(subject.part, StageForm) != (subject.spec.kind is Kind.STAGE):
        yield Failed("kvfw's base class for stage forms on stages, and on stages only", type(subject.part).__name__)
    if subject.spec.kind in (Kind.SCORER, Kind.SELECTOR, Kind.ALLOCATOR, Kind.REFINER, Kind.CODEC):
        needs_of(subject.part, subject.spec.kind)


@holds("frozen", "parts are immutable, and hash by their options", PARTS)
def frozen(subject: Subject) -> Verdicts:
    part: object = subject.part
    if not isinstance(part, Part):
        yield Failed("a subclass of kvfw.Part", type(part).__name__)
        return
    cls = type(part)
    values = {key: getattr(part, key) for key in cls.model_fields}
    twin = cls(**values)
    if hash(part) != hash(twin) or part != twin:
        yield Failed("parts of equal options that are equal and have one hash", "two different ones")
    for key in (*cls.model_fields, "kvfw_no_such_option"):
        try:
            setattr(part, key, values.get(key))
        except (ValidationError, ValueError, AttributeError, TypeError):
            continue
        yield Failed("options that cannot be changed", f"{key} could be set")


@holds("extra-options", "an option that does not exist is refused", PARTS)
def extra_refused(subject: Subject) -> Verdicts:
    """Tries it in a composition's text and in Python."""
    name, kind = subject.spec.name, subject.spec.kind
    try:
        build_part(kind, f"{name}(kvfw_no_such_option=1)", subject.registry)
    except SpecError:
        pass
    else:
        yield Failed("an error for an option that does not exist", f"{name}(kvfw_no_such_option=1) is accepted")
    cls: type[Part] = type(subject.part)
    values = {key: getattr(subject.part, key) for key in cls.model_fields}
    try:
        cls(**values, kvfw_no_such_option=1)  # type: ignore[call-arg] # the mistake is the point
    except ValidationError:
        return
    yield Failed("an error for an option that does not exist", f"{cls.__name__}(kvfw_no_such_option=1) is accepted")


@holds("round-trip", "its canonical text reads back as the same part", PARTS)
def round_trip(subject: Subject) -> Verdicts:
    """Reads the canonical text, then a text with every option written out."""
    kind, registry = subject.spec.kind, subject.registry
    again = build_part(kind, subject.built.text, registry).text
    if again != subject.built.text:
        yield Failed(f"{subject.built.text} read back as itself", again)
    fields = type(subject.part).model_fields
    # Defaults that the grammar cannot write are left out: one with spaces, or None where it has no text.
    plain = {key: default_text(info) for key, info in fields.items() if default_text(info) != "required"}
    given = {option.key: str(option.value) for option in parse_part(subject.built.text).options}
    spelt = [f"{key}={given.get(key, text)}" for key, text in plain.items() if _spells(text)]
    spelt += [f"{key}={text}" for key, text in given.items() if key not in plain]
    if not spelt:
        if not fields:
            yield NotApplicable("it has no options")
        return
    full = f"{subject.spec.name}({','.join(spelt)})"
    again = build_part(kind, full, registry).text
    if again != subject.built.text:
        yield Failed(f"{full} read as {subject.built.text}", again)


def _spells(text: str) -> bool:
    try:
        parse_part(f"part(option={text})")
    except SpecError:
        return False
    return True


@holds("docs", "it has a docstring and a summary of one line", EVERY_KIND)
def docs(subject: Subject) -> Verdicts:
    summary = subject.spec.summary
    if not summary.strip() or "\n" in summary:
        yield Failed("a summary of one line in its PartSpec", repr(summary[:60]))
    if subject.spec.kind is Kind.MODEL:
        return
    cls = type(subject.part)
    own = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    if not own or own == inspect.cleandoc(BaseModel.__doc__ or ""):
        yield Failed("a docstring that says what the part does, best with formula and source", "none")
