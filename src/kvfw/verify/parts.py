"""``verify_part``: runs the suite on every part of a name."""

from collections.abc import Collection

from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry, default_registry
from kvfw.verify.findings.lookup import named
from kvfw.verify.report import VerifyReport
from kvfw.verify.suite import Progress, verify_spec


def verify_part(
    text: str,
    *,
    kind: Kind | None = None,
    registry: Registry | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    progress: Progress = lambda what, number, count: None,
) -> VerifyReport:
    """Checks that a part keeps its contract, without downloading a model.

    ::

        report = kvfw.verify_part("snapkv(window=32)")
        assert report.passed, str(report)

    Args:
        text: a part's name, with or without options.
        kind: only parts of this kind; parts of several kinds may share a name.
        registry: where names are looked up; the installed parts by default.
        only, without: ids of the only properties to check, or of those to leave out.
        progress: called before each property with what is checked, its number and the number of properties.

    Raises:
        SpecError: the text is not a part, has a wrong option or lacks a required one.
        UnknownNameError: no part has the name.
        OptionError: ``only`` or ``without`` has an id that no property has.
    """
    found = registry if registry is not None else default_registry()
    specs = named(text, kind, found)
    return VerifyReport(
        tuple(verify_spec(spec, text, found, only=only, without=without, progress=progress) for spec in specs)
    )
