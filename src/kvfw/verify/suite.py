"""Runs every property of a part's kind, one after the other."""

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvfw.core.compose.build import Built, build_part
from kvfw.core.parts.spec import Kind, PartSpec
from kvfw.core.registry.registry import Registry, unknown
from kvfw.errors import OptionError, SpecError
from kvfw.verify.checks import (
    allocator,
    announced,
    attached,
    batching,
    behaviour,
    calibration,
    codec,
    compression,
    cost,
    memory,
    merger,
    metric,
    model,
    placement,
    refiner,
    scorer,
    selector,
    space,
    task,
)
from kvfw.verify.findings.lookup import completed
from kvfw.verify.findings.property import EVERY_KIND, Property
from kvfw.verify.findings.subject import Subject
from kvfw.verify.findings.verdict import Failed, NotApplicable, Passed, Verdict
from kvfw.verify.instruments.surroundings import restored

Progress = Callable[[str, int, int], None]
LOADS = Property("loads", "the part can be imported and built", EVERY_KIND, lambda subject: iter(()))
#: In the order in which they run; a module's properties in the order they stand there.
CHECKS = (
    announced,
    scorer,
    selector,
    merger,
    space,
    allocator,
    refiner,
    codec,
    task,
    metric,
    model,
    calibration,
    compression,
    batching,
    behaviour,
    placement,
    memory,
    attached,
    cost,
)
PROPERTIES = (
    LOADS,
    *(found for module in CHECKS for found in vars(module).values() if isinstance(found, Property)),
)


@dataclass(frozen=True)
class Finding:
    """A property and whether it holds."""

    property: Property
    verdict: Verdict


@dataclass(frozen=True)
class PartReport:
    """All findings about one part.

    Args:
        spec: the part.
        text: its canonical text, or as given where it could not be built.
        findings: one per property of its kind, in the order of ``PROPERTIES``.
    """

    spec: PartSpec
    text: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Findings about properties that do not hold."""
        return tuple(finding for finding in self.findings if isinstance(finding.verdict, Failed))

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


def verify_spec(
    spec: PartSpec,
    text: str,
    registry: Registry,
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    progress: Progress = lambda what, number, count: None,
) -> PartReport:
    """Runs the suite on one part, ``spec``; arguments and errors are those of ``verify_part``."""
    ids = [prop.id for prop in PROPERTIES]
    for name in (*(only or ()), *without):
        if name not in ids:
            raise OptionError(unknown("property", name, ids))
    asked = [
        prop
        for prop in PROPERTIES
        if spec.kind in prop.kinds and prop.id not in without and (only is None or prop.id in {*only, LOADS.id})
    ]
    try:
        subject = _subject(spec, text, registry)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:  # whatever a third-party module raises is a finding about it
        failed = Failed("a part that can be imported and built", _said(error, None))
        missing = NotApplicable("the part could not be built")
        verdicts = [failed if prop is LOADS else missing for prop in asked]
        return PartReport(spec, text, tuple(map(Finding, asked, verdicts)))
    with restored():
        return PartReport(spec, subject.built.text, tuple(_findings(asked, subject, progress)))


def _subject(spec: PartSpec, text: str, registry: Registry) -> Subject:
    if spec.kind is Kind.MODEL:
        return Subject(spec, Built(spec.load(), text, spec), registry)
    whole = completed(spec, text)
    subject = Subject(spec, build_part(spec.kind, whole, registry), registry)
    if spec.kind is Kind.METHOD:
        subject.bound()  # a recipe that does not work is a method that cannot be built
    return subject


def _findings(asked: list[Property], subject: Subject, progress: Progress) -> Iterator[Finding]:
    """One finding per property. Later checks are skipped when ``contract`` fails."""
    idle = NotApplicable("the part has not what its kind asks for")
    keeps, raised = True, dict[object, str]()
    for number, prop in enumerate(asked, start=1):
        progress(f"{subject.built.text}: {prop.id}", number, len(asked))
        verdict = _checked(prop, subject, raised) if keeps else idle
        yield Finding(prop, verdict)
        keeps = keeps and not (prop.id == "contract" and isinstance(verdict, Failed))


def _checked(prop: Property, subject: Subject, raised: dict[object, str]) -> Verdict:
    """Runs a check. An exception in the part's code is a failure, and does not stop the other properties.

    Each exception is reported once: ``raised`` maps its origin to the first property that met it.
    """
    with restored():
        try:
            return next(prop.check(subject), Passed())
        except (Exception, SystemExit) as caught:
            # Python replaces a StopIteration that leaves a generator, such as a check.
            error = caught.__cause__ if isinstance(caught.__cause__, StopIteration) else caught
            first = raised.setdefault(_origin(error), prop.id)
            if first != prop.id:
                return NotApplicable(f"the same exception as in {first}, at the same line")
            return Failed("no exception", _said(error, type(subject.part)))


def _origin(error: BaseException) -> object:
    """Type and line of the exception that started the chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), frame.filename, frame.lineno


def _said(error: BaseException, part: type | None) -> str:
    """An exception's type and message, and the line of the part's own file that it came from or passed through."""
    message = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    frames = traceback.extract_tb(error.__traceback__)
    own = _file(part)
    mine = [frame for frame in frames if own is not None and frame.filename == own]
    foreign = [frame for frame in frames if "kvfw" not in Path(frame.filename).parts]
    place = mine[-1] if mine else foreign[-1] if part is None and foreign else None
    return message if place is None else f"{message} ({Path(place.filename).name}, line {place.lineno})"


def _file(part: type | None) -> str | None:
    try:
        return inspect.getsourcefile(part) if part is not None else None
    except TypeError:  # a builtin has no file
        return None
