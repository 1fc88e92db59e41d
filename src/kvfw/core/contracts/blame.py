"""Attributes an exception to the part that raised it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvfw.core.state.observation import Needs
from kvfw.errors import KvfwError, RunError

#: Kinds of parts that may do without ``needs``.
MAY_NEED = frozenset({"allocator", "selector"})


@contextmanager
def blamed(who: str) -> Iterator[None]:
    """Turns whatever a part raises in the block, SystemExit included, into one error that names the part and the line.

    Raises:
        RunError: with the exception's type and message; the exception itself is its cause.
    """
    try:
        yield
    except KvfwError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split()) or "no message"
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise RunError(f"{who} failed: {type(error).__name__}: {message} ({place})") from error


def needs_of(part: object, kind: str = "scorer") -> Needs:
    """The part's needs, none if its kind may do without and it declares none.

    Raises:
        RunError: the property fails, or is no :class:`Needs`.
    """
    who = f"{kind} {type(part).__name__}"
    with blamed(f"`needs` of {who}"):
        needs: object = getattr(part, "needs", Needs()) if kind in MAY_NEED else part.needs  # type: ignore[attr-defined]
    if not isinstance(needs, Needs):
        raise RunError(f"`needs` of {who} is {type(needs).__name__} where Needs is expected")
    return needs
