"""Facts in a haystack: the simplest reasoning that a compressed cache can fail at."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.errors import PromptError
from kvfw.tasks import haystack
from kvfw.tasks.facts.stories import first_place, told
from kvfw.tasks.prompting import begun_ids, check_distinct, encoded, framed, stable_random

HEAD: Final = "Read the story below. Some of its sentences say who went to which room. A question comes at the end.\n\n"
TAIL: Final = "\n\n{question} Answer with the name of a room."
MIN_HAYSTACK_TOKENS: Final = 64
#: No sentence stands nearer to the text's ends, percent.
MARGIN: Final = 5.0


class Facts(Part):
    """Where is it: one to three plain sentences scattered over a long text must be put together to answer.

    ``facts=1``: where is a person who went somewhere; 2: where is the thing that a person took, who then went
    somewhere; 3: took it, gave it to another, who then went somewhere. As many sentences about other people lead
    nowhere. All words are common ones, without digits and codes: nothing in a sentence's spelling says that it matters.
    ``accuracy`` is 1 if the first place that the response names is the right one; guessing among the two places named
    gives half.

    Source: after BABILong (Kuratov et al. 2024, arXiv 2406.10149), which hides bAbI's facts in books.

    Deviations: stories and wording are kvfw's own, and so is the haystack: not comparable with published figures.
    """

    contexts: tuple[int, ...] = Field((1024,), description="lengths of the whole prompt, tokens")
    facts: tuple[int, ...] = Field((1,), description="sentences that the answer needs: 1, 2, 3")
    seeds: int = Field(8, ge=1, le=1000, description="samples per length and number of facts, numbered from 0")
    haystack: Path | None = Field(None, description="UTF-8 text to scatter the facts in; none: the shipped Moby-Dick")
    begin_answer: bool = Field(True, description="begin the answer for the model, up to the place")

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="accuracy", title="Accuracy", unit="%", proportion=True, digits=1, higher_is_better=True, primary=True
        ),
    )

    def check(self) -> None:
        """See :class:`~kvfw.core.contracts.task.Task`.

        Raises:
            PromptError: an empty list or a value given twice; a number of facts outside 1 to 3; a haystack that cannot
                be read.
        """
        check_distinct("contexts", self.contexts)
        check_distinct("facts", self.facts)
        for facts in self.facts:
            if not 1 <= facts <= 3:
                raise PromptError(f"facts: {facts} is not a number of facts; give 1, 2 or 3")
        haystack.read(self.haystack)

    def sources(self) -> tuple[str, ...]:
        """The haystack, from which no calibration file may be made."""
        return (haystack.read(self.haystack),)

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """Every seed of every number of facts of every length.

        Raises:
            PromptError: as in :meth:`check`; a context without room; a haystack that is too short.
        """
        self.check()
        text = haystack.read(self.haystack)
        for context in self.contexts:
            for facts in self.facts:
                for seed in range(self.seeds):
                    yield self._sample(tokenizer, context, facts, seed, text)

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """``accuracy``: 1 if the first place named is the right one, else 0."""
        return {"accuracy": float(first_place(response) == turn.references[0])}

    def _sample(self, tokenizer: Tokenizer, context: int, facts: int, seed: int, text: str) -> Sample:
        rng = stable_random("facts", context, facts, seed)
        story = told(rng, facts)
        head, tail = framed(tokenizer, HEAD, TAIL.format(question=story.question))
        begun = begun_ids(tokenizer, tail, story.begun if self.begin_answer else "")
        pieces = [encoded(tokenizer, f" {sentence}") for sentence in story.sentences]
        taken = len(head) + len(tail) + len(begun) + sum(map(len, pieces))
        if context - taken < MIN_HAYSTACK_TOKENS:
            raise PromptError(
                f"a context of {context} tokens is too short: template, facts and question take {taken} and the "
                f"haystack needs {MIN_HAYSTACK_TOKENS}. Ask for at least {taken + MIN_HAYSTACK_TOKENS} tokens."
            )
        source = "(shipped)" if self.haystack is None else str(self.haystack)
        hay = haystack.cut(tokenizer, text, context - taken, rng, source)
        depths = sorted(rng.uniform(MARGIN, 100 - MARGIN) for _ in pieces)
        cuts = [0, *(haystack.place(tokenizer, hay, depth) for depth in depths), len(hay)]
        ids, spans = list(head), []
        for index, (start, stop) in enumerate(pairwise(cuts)):
            ids += hay[start:stop]
            if index < len(pieces):
                if index in story.needed:
                    spans.append(range(len(ids), len(ids) + len(pieces[index])))
                ids += pieces[index]
        return Sample(
            id=f"{context}-{facts}-{seed}",
            group=f"{context}-{facts}/{seed}",
            facets={"context": context, "facts": facts, "seed": seed},
            context_ids=tuple(ids),
            turns=(Turn(tail, begun, (story.answer,), 12),),
            spans=tuple(spans),
        )
