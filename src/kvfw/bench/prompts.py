"""Prompts for measurements."""

from kvfw.core.compose.build import build_part
from kvfw.core.contracts.task import Task, Tokenizer
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.errors import UnsupportedError


def prompt_ids(tokenizer: Tokenizer, tokens: int, registry: Registry) -> tuple[int, ...]:
    """A prompt of the default task with exactly this many tokens."""
    task = build_part(Kind.TASK, f"niah(contexts=[{tokens}],depths=[50])", registry).value
    if not isinstance(task, Task):
        raise UnsupportedError("task 'niah' makes no prompts")
    (sample,) = task.samples(tokenizer)
    return sample.context_ids + sample.turns[0].exact_ids
