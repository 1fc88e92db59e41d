"""Tasks: what a trial is, what a prompt carries, and what a task must offer. No torch, no transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Trial:
    """One cell of the experiment's grid: the same trial gives the same prompt on every machine.

    Args:
        context_tokens: length of the whole prompt in tokens, template, question and begun answer included.
        depth_percent: where the needle goes, in percent of the haystack's tokens, 0 to 100.
        seed: number of the repetition; together with the length it fixes everything but code and depth.
    """

    context_tokens: int
    depth_percent: float
    seed: int


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, with the spans that the metrics and the compression need.

    Args:
        input_ids: the whole prompt, special tokens of the template included.
        needle: positions of the needle sentence's tokens in ``input_ids``.
        answer: what a right response contains.
        context_end: number of tokens up to the end of the haystack. Question-agnostic runs compress
            ``input_ids[:context_end]``; what follows is question, template and begun answer.
        begun: the answer that the prompt begins for the model, without surrounding space; ``""`` when off.
        text: ``input_ids`` decoded, special tokens included.
    """

    input_ids: tuple[int, ...]
    needle: range
    answer: str
    context_end: int
    begun: str
    text: str


class Tokenizer(Protocol):
    """The few methods of a tokenizer that tasks use; every tokenizer of transformers has them.

    ``decode`` and ``apply_chat_template`` return ``Any``: transformers declares unions over all their modes.
    """

    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with or without the special tokens that the tokenizer puts around a text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False, **kwargs: Any) -> Any:
        """Text (``str``) of token ids."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        """The conversation as the model expects it: a ``str`` with ``tokenize=False``."""


@runtime_checkable
class Task(Protocol):
    """Makes prompts and judges responses. Pure: the same arguments give the same result in every process."""

    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None:
        """As :meth:`check`, but only what needs no tokenizer: called first, before anything is fetched.

        Raises:
            PromptError: names the value, the rule and the way out.
        """

    def check(
        self,
        tokenizer: Tokenizer,
        contexts: Sequence[int],
        depths: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        """Raises, before any time is spent on a model, if some trial of the grid cannot be built.

        Args:
            tokenizer: the model's own.
            contexts: prompt lengths in tokens.
            depths: depths in percent.
            seeds: numbers of the repetitions.

        Raises:
            PromptError: names the value, the rule and the way out.
        """

    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> Prompt:
        """The prompt of a trial, exactly ``trial.context_tokens`` long.

        Raises:
            PromptError: the prompt cannot be built as asked.
        """

    def recalled(self, response: str, prompt: Prompt) -> bool:
        """Whether ``response`` (what the model wrote itself, without the begun answer) is right."""
