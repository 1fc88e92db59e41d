"""Tasks: contexts, questions about them, and the scoring of responses. No torch, no transformers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:  # imports pydantic
    from kvfw.core.contracts.records import Facet, MetricInfo


@dataclass(frozen=True)
class Turn:
    """One question about a context.

    Args:
        question_ids: tokens after the context, up to where the model writes: question and template.
        begun_ids: start of the answer, given in the prompt; empty for none.
        references: what a right response contains, or is compared with.
        max_new_tokens: longest response, tokens.
        follow_ids: a text fed in place of a response (teacher-forced), so that nothing is generated; empty to generate.
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
        id: identifies the sample within its task; short, of letters, digits and ``-._``.
        group: samples that resampling keeps together, such as those sharing a text. A group ``1024/0`` is exchanged
            only with other groups ``1024/…``, never with ``2048/…``.
        facets: to plot and tabulate by, in display order; the same names in all samples, each for numbers or for words.
        context_ids: the tokens to compress, including special tokens and template before the context.
        turns: at least one.
        spans: ranges of ``context_ids`` that a right answer needs; empty if there are none to name.
    """

    id: str
    group: str
    facets: "Mapping[str, Facet]"
    context_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    spans: tuple[range, ...] = field(default=())


class Tokenizer(Protocol):
    """The methods of a tokenizer that tasks use; every transformers tokenizer has them.

    ``decode`` and ``apply_chat_template`` return ``Any``: transformers declares unions over all their modes.
    """

    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all special tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with or without the special tokens the tokenizer puts around it."""

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


def facet_text(value: "Facet") -> str:
    """A facet's value without a trailing ".0": 10.0 is "10", 12.5 is "12.5"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@runtime_checkable
class Task(Protocol):
    """Makes samples and scores responses. Pure: the same options give the same samples in every process.

    Everything a task can vary (lengths, depths, seeds, files) is one of its options. It may further have ``sources()``,
    the texts that contexts are cut from: a calibration file that shares passages with one of them is refused.
    """

    scores: "ClassVar[tuple[MetricInfo, ...]]"
    """The values a response is judged by, in table order; exactly one is ``primary``.

    A metric can be one of them: its ``info``, except for ``primary``. The metric measures it, :meth:`score` does not.
    """

    def check(self) -> None:
        """Checks options and files before anything is fetched.

        Raises:
            PromptError: no sample can be made; names the value, the rule and the way out.
        """

    def samples(self, tokenizer: Tokenizer) -> Iterable[Sample]:
        """All samples for the model's tokenizer, in the order they run. Called once per run.

        Raises:
            PromptError: a sample cannot be made; names the value, the rule and the way out.
        """

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """A value for every name in ``scores`` that is no metric.

        ``response`` is what the model wrote after the begun answer.
        """
