"""A configuration that transformers can make nothing of: its own exceptions, as one error for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvfw.errors import KvfwError, UnsupportedError


@contextmanager
def made_by_transformers(name: str) -> Iterator[None]:
    """Around calls into transformers that read a configuration or make something of it, and around nothing else.

    What transformers raises for a value it cannot use is of any kind: a class of its own for a failed validation, but
    also a KeyError, TypeError or ZeroDivisionError from deep inside.

    Args:
        name: what errors call the model.

    Raises:
        UnsupportedError: transformers failed, and how.
    """
    try:
        yield
    except KvfwError:
        raise
    except Exception as error:
        raise cannot_be_used(name, error) from error


def cannot_be_used(name: str, error: Exception, files: str = "config.json") -> UnsupportedError:
    """The error to show when transformers could make nothing of a model's configuration, or of other files."""
    return UnsupportedError(
        f"transformers cannot use {files} of {name}: {type(error).__name__}: {_first_words(error)}\n"
        f"Look at {files} of this model: put right what is wrong there, or take the files as they were published."
    )


def _first_words(error: Exception) -> str:
    """The first line of what an exception says, and the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
