"""``verify_part``: the suite on everything that answers to a name."""

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
    """Checks everything that must hold of a part, without fetching a model.

    ::

        report = kvfw.verify_part("snapkv(window=32)")
        assert report.passed, str(report)

    Args:
        text: a part's name, with options where they matter.
        kind: only parts of this kind; a name may stand for parts of several.
        registry: where names are looked up; the installed parts by default.
        only, without: ids of properties to check alone, or to leave out.
        progress: called before each property with what is checked, its number and how many there are.

    Raises:
        SpecError: the text is no part, or has a wrong option.
        UnknownNameError: no part has the name.
        OptionError: ``only`` or ``without`` name a property that does not exist.
    """
    found = registry if registry is not None else default_registry()
    specs = named(text, kind, found)
    return VerifyReport(
        tuple(verify_spec(spec, text, found, only=only, without=without, progress=progress) for spec in specs)
    )
