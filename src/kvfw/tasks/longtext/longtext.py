"""Long text: how well a compressed cache predicts the text that follows.

A sample is one window of a text: the first part is compressed, the rest is fed token by token (teacher-forced)::

    special tokens | window, compressed | window, followed
    special tokens | passage | passage again, its start compressed with it | the rest of it followed     (copy)
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.errors import PromptError
from kvfw.tasks import haystack
from kvfw.tasks.prompting import check_distinct, encoded, opening_ids

#: Between a passage and its repetition.
BREAK = "\n\n"
#: Tokens of the repetition that are compressed with the passage, so that it is clear what is repeated.
STARTED_TOKENS = 32
#: Shortest window, tokens, before and after the place where compression ends.
LEAST_TOKENS = 16


class Longtext(Part):
    """Long text: the prompt is compressed, then the next tokens of the text are fed and their likelihood measured.

    Windows lie at equal distances from the start to the end of the text and are cut out of one encoding of a slice, so
    that a window is ``context`` tokens to compress and ``follow`` tokens right after them. Nothing is generated and no
    capable model is needed. ``delta_nll`` against the full cache is paired by window; report it rather than a mean of
    perplexities. With ``compress_every`` the cache is compressed again while the text is fed: the streaming form.

    ``copy``: the window's passage is followed by itself, of which 32 tokens are compressed with it. The full cache
    copies it almost without surprise, so a lost token shows at once.

    Source: Rae et al. 2019, Compressive Transformers (perplexity of long books by window); the copy test: Olsson et al.
    2022, In-context Learning and Induction Heads.

    Deviations: Moby-Dick or a file in place of PG19; differences of the mean NLL in place of perplexities.
    """

    contexts: tuple[int, ...] = Field((1024,), description="tokens compressed, special tokens included")
    follow: int = Field(512, ge=LEAST_TOKENS, description="tokens of the text fed after them; copy: at most that many")
    windows: int = Field(8, ge=1, le=1000, description="windows per length, numbered from 0")
    copy_passage: bool = Field(False, description="follow the passage with itself instead of with what comes next")
    haystack: Path | None = Field(None, description="UTF-8 text to take windows from; none: the shipped Moby-Dick")

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="delta_nll", title="ΔNLL", unit="nats", digits=4, higher_is_better=False, primary=True),
    )

    def check(self) -> None:
        """See :class:`~kvfw.core.contracts.task.Task`.

        Raises:
            PromptError: no length, one given twice or one too short; a text that cannot be read.
        """
        check_distinct("contexts", self.contexts)
        least = LEAST_TOKENS + (STARTED_TOKENS + LEAST_TOKENS if self.copy_passage else 0)
        for context in self.contexts:
            if context < least:
                raise PromptError(f"contexts: a window of {context} tokens is too short; give at least {least}")
        haystack.read(self.haystack)

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """Every window of every length.

        Raises:
            PromptError: as in :meth:`check`; the text has not enough tokens after a window's start.
        """
        self.check()
        text = haystack.read(self.haystack)
        opening = opening_ids(tokenizer)
        for context in self.contexts:
            for window in range(self.windows):
                ids, follow = self._window(tokenizer, text, context - len(opening), window)
                yield Sample(
                    id=f"{context}-{window}",
                    group=f"{context}/{window}",
                    facets={"context": context, "window": window},
                    context_ids=opening + ids,
                    turns=(Turn((), follow_ids=follow),),
                )

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """Nothing: the metric ``delta_nll`` measures what the task is judged by."""
        return {}

    def _window(
        self, tokenizer: Tokenizer, text: str, tokens: int, window: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids to compress, exactly ``tokens``, and ids to follow."""
        places = haystack.starts(text)
        if not self.copy_passage:
            ids = self._ids(tokenizer, text, places, tokens + self.follow, window)
            return ids[:tokens], ids[tokens:]
        between = encoded(tokenizer, BREAK)
        length = tokens - len(between) - STARTED_TOKENS
        passage = self._ids(tokenizer, text, places, length, window)
        again = passage[STARTED_TOKENS : STARTED_TOKENS + self.follow]
        return passage + between + passage[:STARTED_TOKENS], again

    def _ids(self, tokenizer: Tokenizer, text: str, places: list[int], tokens: int, window: int) -> tuple[int, ...]:
        """Ids from the start of the window: the place nearest to its share of the text that has room."""
        # A window starts at its share of all but the end, which is left to the last one.
        room = max(len(text) - haystack.CHARS_PER_TOKEN * tokens, 0)
        wanted = room * window / max(self.windows - 1, 1)
        start = min(places, key=lambda place: abs(place - wanted))
        ids = haystack.encoded_from(tokenizer, text, start, tokens)
        if len(ids) < tokens:
            source = "(shipped)" if self.haystack is None else str(self.haystack)
            raise PromptError(
                f"haystack {source} has {len(ids)} tokens after the start of window {window} and {tokens} are needed. "
                "It is never repeated: give a longer text, or shorter windows (contexts, follow)."
            )
        return tuple(ids[:tokens])
