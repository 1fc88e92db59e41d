"""Configurations that transformers cannot use: its exceptions as one error for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvfw.errors import KvfwError, UnsupportedError


@contextmanager
def made_by_transformers(name: str) -> Iterator[None]:
    """Wraps calls into transformers that read or use a configuration, and nothing else.

    For a value it cannot use transformers raises anything: its own validation error, but also a KeyError, TypeError or
    ZeroDivisionError from deep inside. ``name`` is the model's name in errors.

    Raises:
        UnsupportedError: transformers failed, with its reason.
    """
    try:
        yield
    except KvfwError:
        raise
    except Exception as error:
        raise cannot_be_used(name, error) from error


def cannot_be_used(name: str, error: Exception, files: str = "config.json") -> UnsupportedError:
    """The error to show when transformers cannot use a model's configuration or other files."""
    return UnsupportedError(
        f"transformers cannot use {files} of {name}: {type(error).__name__}: {_first_words(error)}\n"
        f"Look at {files} of this model: put right what is wrong there, or take the files as they were published."
    )


def _first_words(error: Exception) -> str:
    """The first line of an exception's message, and the second if the first ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
