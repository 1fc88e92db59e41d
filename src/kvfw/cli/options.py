"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvfw.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])


def model_options(command: F) -> F:
    """Adds options for the model, its precision and its device."""
    for option in (
        click.option(
            "--prefill-chunk",
            type=int,
            metavar="N",
            help="Prefill N tokens at a time, to bound memory.  [default: all at once]",
        ),
        click.option("--trust-remote-code", is_flag=True, default=None, help="Run code that comes with the model."),
        click.option("--device", help="auto, cpu, cuda, cuda:1, mps ...  [default: auto]"),
        click.option("--dtype", help="auto, float32, bfloat16 or float16.  [default: auto: float32 on a CPU]"),
        click.option("--model", help="Embedded name, local folder or hub id.  [default: smollm2-135m]"),
    ):
        command = option(command)
    return command


def amount_options(command: F) -> F:
    """Adds options for how much of the prompt to keep."""
    for option in (
        click.option("--recent", type=int, help="Last tokens of the prompt that are always kept.  [default: 84]"),
        click.option("--sinks", type=int, help="First tokens of the prompt that are always kept.  [default: 4]"),
        click.option("--keep", multiple=True, metavar="F", help="Fraction of the middle to keep. Repeatable."),
        click.option("--slots", multiple=True, metavar="N", help="Total slots per KV head. Repeatable."),
        click.option(
            "--ratio",
            multiple=True,
            metavar="Q",
            help="How many times smaller the middle becomes. Repeatable.  [default: 4]",
        ),
    ):
        command = option(command)
    return command


def numbers(option: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...] | None:
    """The values of a comma-separated list. Raises OptionError for a value that is no number of the wanted kind."""
    if text is None:
        return None
    values = []
    for item in text.split(","):
        try:
            values.append(kind(item.strip()))
        except ValueError:
            wanted = "whole number" if kind is int else "number"
            raise OptionError(f"{option} has {item.strip()!r}; it takes {wanted}s separated by commas") from None
    return tuple(values)
