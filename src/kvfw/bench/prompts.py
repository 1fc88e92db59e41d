"""Prompts to measure on."""

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.task import Task, Tokenizer, Trial
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.errors import UnsupportedError


def prompt_ids(tokenizer: Tokenizer, tokens: int, registry: Registry) -> tuple[int, ...]:
    """A prompt of exactly so many tokens: that of the default task, its needle in the middle."""
    task = build_part(Kind.TASK, "niah", registry).value
    if not isinstance(task, Task):
        raise UnsupportedError("task 'niah' makes no prompts")
    task.check(tokenizer, [tokens], [50.0], [0])
    return task.prompt(tokenizer, Trial(tokens, 50.0, 0)).input_ids
