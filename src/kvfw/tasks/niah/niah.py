"""Needle in a haystack: a sentence with a random code in a long text, and a question that asks for the code.

The prompt is assembled from separately encoded pieces::

    template head | haystack, part 1 | needle | haystack, part 2 | question, template tail | begun answer

so its length and spans are exact by construction. The needle replaces nothing: it is inserted between two words.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.errors import PromptError
from kvfw.tasks import haystack
from kvfw.tasks.prompting import begun_ids, check_grid, decoded, encoded, framed, grid_sample, stable_random

#: Without I, O, 0 and 1, which are easily confused.
CODE_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_CHARS: Final = 7
#: Shortest haystack of a prompt, tokens: with less there is nothing to search in.
MIN_HAYSTACK_TOKENS: Final = 64


@dataclass(frozen=True)
class Wording:
    """One way to hide a code (``needle``, with ``{code}`` in it), ask for it, and begin the answer up to it."""

    needle: str
    question: str
    begun: str


def wording_of(thing: str) -> Wording:
    """The wording for a thing that has a code. The colon helps very small models copy the first letter."""
    return Wording(f"{thing} is: {{code}}.", f"What is {thing[0].lower()}{thing[1:]}?", f"{thing} is:")


WORDINGS: Final = tuple(
    wording_of(thing)
    for thing in (
        "The access code for the vault",
        "The secret password of the archive",
        "The combination of the museum's safe",
        "The password for the wireless network",
        "The booking reference of the train ticket",
        "The activation key of the alarm system",
    )
)

HEAD: Final = "Read the text below. A question about one detail of it comes at the end.\n\nText:"
TAIL: Final = "\n\nThis is the end of the text. {question}"


@dataclass(frozen=True)
class Ground:
    """Everything that the samples of one length and seed share.

    Args:
        head, hay, tail: ids before the haystack, of the haystack without needle, and after it up to the answer.
        begun: ids of the begun answer, empty when off.
        wording: the wording of this length and seed.
        needle_tokens: length of the needle; codes are drawn until one fits, so that samples share all text.
    """

    head: tuple[int, ...]
    hay: tuple[int, ...]
    tail: tuple[int, ...]
    begun: tuple[int, ...]
    wording: Wording
    needle_tokens: int


class Niah(Part):
    """Needle in a haystack: a code hidden in a long text must come back in the response.

    A prompt is ``template | text, part 1 | needle | text, part 2 | question, template | begun answer``, exactly as
    many tokens long as asked. The needle is at ``depths`` percent of the text's tokens, moved to the start of a
    sentence up to 8 tokens away, or else to the nearest start of a word. Text and wording vary by length and seed, the
    code by sample: seven characters without I, O, 0, 1. ``recall`` is 1 if the code occurs, case-sensitively, in the
    model's own text; a begun answer does not count.

    Source: Kamradt 2023, Needle In A Haystack - pressure testing LLMs.

    Deviations: the needle is a random code, not a sentence about San Francisco, so that it cannot be guessed; recall is
    the code's occurrence in the response, not a model's grade; the answer is begun for the model unless switched off,
    because very small models do not start with the code by themselves.
    """

    contexts: tuple[int, ...] = Field((1024,), description="lengths of the whole prompt, tokens")
    depths: tuple[float, ...] = Field((10.0, 30.0, 50.0, 70.0, 90.0), description="places of the needle, percent")
    seeds: int = Field(1, ge=1, le=1000, description="texts per length, numbered from 0")
    haystack: Path | None = Field(None, description="UTF-8 text to hide the needle in; none: the shipped Moby-Dick")
    begin_answer: bool = Field(True, description="begin the answer for the model, up to the code")

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="recall", title="Recall", unit="%", proportion=True, digits=1, higher_is_better=True, primary=True
        ),
    )

    def check(self) -> None:
        """See :class:`~kvfw.core.contracts.task.Task`.

        Raises:
            PromptError: an empty list or a value given twice; a depth outside 0 to 100; a haystack that cannot be read.
        """
        check_grid(self.contexts, self.depths)
        haystack.read(self.haystack)

    def sources(self) -> tuple[str, ...]:
        """The haystack, from which no calibration file may be made."""
        return (haystack.read(self.haystack),)

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """Every depth of every seed of every length.

        Raises:
            PromptError: as in :meth:`check`; a context without room; a haystack that is too short; the tokenizer does
                not give the needle back as it was.
        """
        self.check()
        text = haystack.read(self.haystack)
        for context in self.contexts:
            for seed in range(self.seeds):
                ground = self.ground(tokenizer, context, seed, text)
                for depth in self.depths:
                    yield planted(tokenizer, ground, context, depth, seed)

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """``recall``: 1 if the code occurs in ``response``, else 0."""
        return {"recall": float(turn.references[0] in response)}

    def ground(self, tokenizer: Tokenizer, context_tokens: int, seed: int, text: str) -> Ground:
        """Draws what the samples of one length and seed share.

        Raises:
            PromptError: the context has no room, or the haystack is too short.
        """
        rng = stable_random("niah", context_tokens, seed)
        wording = rng.choice(WORDINGS)
        head, tail = frame(tokenizer, wording)
        begun = self.begun_ids(tokenizer, tail, wording)
        needle_tokens = len(needle_ids(tokenizer, wording, draw_code(rng)))
        hay_tokens = context_tokens - len(head) - needle_tokens - len(tail) - len(begun)
        if hay_tokens < MIN_HAYSTACK_TOKENS:
            raise PromptError(
                f"a context of {context_tokens} tokens is too short: template, needle and question take "
                f"{context_tokens - hay_tokens} and the haystack needs {MIN_HAYSTACK_TOKENS}. "
                f"Ask for at least {self.least_tokens(tokenizer)} tokens."
            )
        source = "(shipped)" if self.haystack is None else str(self.haystack)
        hay = haystack.cut(tokenizer, text, hay_tokens, rng, source)
        refuse_special(tokenizer, hay, text, source)
        return Ground(head, hay, tail, begun, wording, needle_tokens)

    def begun_ids(self, tokenizer: Tokenizer, tail: tuple[int, ...], wording: Wording) -> tuple[int, ...]:
        """Ids of the begun answer; none when it is off."""
        return begun_ids(tokenizer, tail, wording.begun if self.begin_answer else "")

    def least_tokens(self, tokenizer: Tokenizer) -> int:
        """The shortest context, in tokens, that has room for every wording and code."""

        def taken(wording: Wording) -> int:
            head, tail = frame(tokenizer, wording)
            # A character of the code takes one token at most; the sentence may split once more on each side.
            needle = len(needle_ids(tokenizer, wording, "")) + CODE_CHARS + 2
            return len(head) + len(tail) + len(self.begun_ids(tokenizer, tail, wording)) + needle

        return max(map(taken, WORDINGS)) + MIN_HAYSTACK_TOKENS


def planted(tokenizer: Tokenizer, ground: Ground, context: int, depth: float, seed: int) -> Sample:
    """The shared ground with the sample's own code at its depth."""
    code, needle = fitting_code(tokenizer, ground, stable_random("niah", context, seed, depth))
    at = haystack.place(tokenizer, ground.hay, depth)
    before = (*ground.head, *ground.hay[:at])
    pieces = (before, needle, ground.hay[at:], ground.tail, ground.begun)
    sample = grid_sample(context, depth, seed, *pieces, reference=code)
    verify(tokenizer, sample, needle, code, ground.wording.needle.format(code=code))
    return sample


def draw_code(rng: random.Random) -> str:
    """A code of ``CODE_CHARS`` capitals and digits with at least one of each."""
    while True:
        code = "".join(rng.choice(CODE_ALPHABET) for _ in range(CODE_CHARS))
        if not code.isalpha() and not code.isdigit():
            return code


def fitting_code(tokenizer: Tokenizer, ground: Ground, rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """A code whose needle is exactly as long as the ground's room for it, and that needle's ids.

    Raises:
        PromptError: no such code in 10 000 draws; unlikely, since the ground itself drew one.
    """
    for _ in range(10_000):
        code = draw_code(rng)
        needle = needle_ids(tokenizer, ground.wording, code)
        if len(needle) == ground.needle_tokens:
            return code, needle
    raise PromptError(
        f"no code found that makes the needle {ground.needle_tokens} tokens long with this tokenizer. "
        f"Choose another seed or context."
    )


def needle_ids(tokenizer: Tokenizer, wording: Wording, code: str) -> tuple[int, ...]:
    """Ids of the needle sentence, with the space before it."""
    return encoded(tokenizer, " " + wording.needle.format(code=code))


def frame(tokenizer: Tokenizer, wording: Wording) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after the haystack."""
    return framed(tokenizer, HEAD, TAIL.format(question=wording.question))


def refuse_special(tokenizer: Tokenizer, hay: tuple[int, ...], text: str, source: str) -> None:
    """Raises a PromptError if the haystack spells out a special token, which would change the prompt's structure."""
    for token in set(hay).intersection(tokenizer.all_special_ids):
        spelled = decoded(tokenizer, [token])
        # The token for unknown characters is special too, but the text does not spell it out.
        if spelled in text:
            raise PromptError(
                f"haystack {source} holds {spelled!r}, a special token of this tokenizer. Remove it from the text."
            )


def verify(tokenizer: Tokenizer, sample: Sample, needle: tuple[int, ...], code: str, sentence: str) -> None:
    """Decodes the prompt and checks it.

    Raises:
        PromptError: the needle or its code does not occur in it exactly once.
    """
    text, span = decoded(tokenizer, sample.context_ids + sample.turns[0].exact_ids), decoded(tokenizer, needle)
    for what, piece in (("code", code), ("needle", sentence)):
        found = text.count(piece)
        if found != 1 or piece not in span:
            raise PromptError(
                f"the {what} {piece!r} stands {found} times in the decoded prompt and must stand there once. "
                f"If more often: the haystack has it already; use another haystack or seed. If not: this "
                f"tokenizer does not give text back as it was (lower case, unknown characters); use another."
            )
