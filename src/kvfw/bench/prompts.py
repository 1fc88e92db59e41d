"""Prompts to measure on."""

from kvfw.core.compose.composition import build_part
from kvfw.core.contracts.task import Task, Tokenizer
from kvfw.core.parts.spec import Kind
from kvfw.core.registry.registry import Registry
from kvfw.errors import UnsupportedError


def prompt_ids(tokenizer: Tokenizer, tokens: int, registry: Registry) -> tuple[int, ...]:
    """A prompt of exactly so many tokens: that of the default task."""
    part = build_part(Kind.TASK, "niah", registry)
    task = type(part).model_validate({"contexts": (tokens,), "depths": (50.0,)})
    if not isinstance(task, Task):
        raise UnsupportedError("task 'niah' makes no prompts")
    (sample,) = task.samples(tokenizer)
    return sample.context_ids + sample.turns[0].exact_ids
