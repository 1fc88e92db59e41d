"""Tasks: what is asked, about which context, and how a response is scored. No torch, no transformers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:  # pydantic would be imported with it
    from kvfw.core.contracts.records import Facet, MetricInfo


@dataclass(frozen=True)
class Turn:
    """One question about a context.

    Args:
        question_ids: tokens after the context, up to where the model writes: question and template.
        begun_ids: tokens of the answer that the prompt begins for the model; empty for none.
        references: what a right response contains, or is compared with.
        max_new_tokens: longest response, tokens.
        follow_ids: a text that is fed in place of a response (teacher-forced), so that nothing is generated; empty for
            a response of the model's own.
    """

    question_ids: tuple[int, ...]
    begun_ids: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    max_new_tokens: int = 24
    follow_ids: tuple[int, ...] = ()

    @property
    def exact_ids(self) -> tuple[int, ...]:
        """Everything that follows the context."""
        return self.question_ids + self.begun_ids


@dataclass(frozen=True)
class Sample:
    """One context and the questions about it.

    Args:
        id: names the sample within its task; short, of letters, digits and ``-._``.
        group: what resampling keeps together, such as the samples that share a text. ``"1024/0"``: of several groups
            ``1024/…`` one is drawn instead of another, never one of ``2048/…``.
        facets: numbers or words to plot and to tabulate by, in the order they are shown; all samples have the same.
        context_ids: the tokens that compression works on, special tokens and template before them included.
        turns: at least one.
        spans: where in ``context_ids`` stands what a right answer needs; empty where nothing can be pointed at.
    """

    id: str
    group: str
    facets: "Mapping[str, Facet]"
    context_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    spans: tuple[range, ...] = field(default=())


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
    """Makes samples and scores responses. Pure: the same options give the same samples in every process.

    Everything a task can vary (lengths, depths, seeds, files) is an option of it.
    """

    scores: "ClassVar[tuple[MetricInfo, ...]]"
    """What :meth:`score` answers, in table order; exactly one is ``primary``."""

    def check(self) -> None:
        """Raises, before anything is fetched, for options that no sample can be made with, and unreadable files.

        Raises:
            PromptError: names the value, the rule and the way out.
        """

    def samples(self, tokenizer: Tokenizer) -> Iterable[Sample]:
        """All samples, in the order they run. Called once per run.

        Args:
            tokenizer: the model's own.

        Raises:
            PromptError: a sample cannot be made; names the value, the rule and the way out.
        """

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """A value for every name in ``scores``.

        Args:
            response: what the model wrote itself, without the begun answer.
            sample, turn: what it was asked.
        """
