"""Needle in a haystack: a sentence with a random code in a long text, and a question that asks for the code.

The prompt is put together from token ids of pieces that are encoded apart::

    template head | haystack, part 1 | needle | haystack, part 2 | question, template tail | begun answer

so its length and the spans in it are exact by construction. The needle replaces nothing: it stands between
two words. Source and deviations: see :class:`Niah`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from kvfw.core.contracts.task import Prompt, Tokenizer, Trial
from kvfw.core.parts.part import Part
from kvfw.errors import PromptError
from kvfw.tasks import haystack
from kvfw.tasks.prompting import begun_ids, check_depth, check_grid, encoded, framed, stable_random

#: Without I, O, 0 and 1, which readers mix up.
CODE_ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_CHARS: Final = 7
#: Least haystack a prompt must hold, in tokens: with less there is nothing to search in.
MIN_HAYSTACK_TOKENS: Final = 64


@dataclass(frozen=True)
class Wording:
    """One way to hide and to ask for a code.

    Args:
        needle: the sentence, with ``{code}`` in it.
        question: asks for the code.
        begun: how the answer begins, up to the code.
    """

    needle: str
    question: str
    begun: str


def wording_of(thing: str) -> Wording:
    """The wording for a thing that has a code. The colon is what lets very small models copy the first letter."""
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
    """Everything that the trials of one length and seed share.

    Args:
        head: ids before the haystack.
        hay: ids of the haystack without the needle.
        tail: ids after the haystack, up to where the model writes.
        begun: ids of the begun answer, empty when off.
        wording: how this length and seed hide and ask for the code.
        needle_tokens: length of the needle; codes are drawn until one fits, so that trials share all text.
    """

    head: tuple[int, ...]
    hay: tuple[int, ...]
    tail: tuple[int, ...]
    begun: tuple[int, ...]
    wording: Wording
    needle_tokens: int


class Niah(Part):
    """Needle in a haystack: a code hidden in a long text must come back in the response.

    A prompt is ``template | text, part 1 | needle | text, part 2 | question, template | begun answer``, exactly as many
    tokens long as asked. The needle stands at ``depth`` percent of the text's tokens, moved to the start of a sentence
    or a word nearby. Text and wording vary by length and seed, the code by trial: seven characters without I, O, 0, 1.

    Source: Kamradt 2023, Needle In A Haystack - pressure testing LLMs.

    Deviations: the needle holds a random code in place of a sentence about San Francisco, so that it cannot be guessed;
    recall is the code's occurrence in the response, not a model's grade; the answer is begun for the model unless
    switched off, because very small models do not start with the code by themselves.
    """

    haystack: Path | None = Field(None, description="UTF-8 text to hide the needle in; none: the shipped Moby-Dick")
    begin_answer: bool = Field(True, description="begin the answer for the model, up to the code")

    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None:
        """Checks what needs no tokenizer.

        Raises:
            PromptError: an empty list or a value given twice; a depth outside 0 to 100; a haystack that cannot be read.
        """
        check_grid(contexts, depths, seeds)
        haystack.read(self.haystack)

    def check(
        self,
        tokenizer: Tokenizer,
        contexts: Sequence[int],
        depths: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        """Builds every prompt of the grid once: milliseconds each, and nothing can go wrong later.

        Raises:
            PromptError: an empty list or a value given twice; a depth outside 0 to 100; a context without
                room; a haystack that cannot be read or is too short.
        """
        self.check_settings(contexts, depths, seeds)
        text = haystack.read(self.haystack)
        for context in contexts:
            for seed in seeds:
                ground = self.ground(tokenizer, context, seed, text)
                for depth in depths:
                    self.planted(tokenizer, ground, Trial(context, depth, seed))

    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> Prompt:
        """The prompt of a trial, exactly ``trial.context_tokens`` tokens long.

        Text and wording depend on length and seed, the code on the whole trial. The needle stands at
        ``depth_percent`` of the haystack's tokens, moved to the start of a sentence up to 8 tokens away, or
        else to the nearest start of a word.

        Raises:
            PromptError: as in :meth:`check`, or the tokenizer does not give the needle back as it was.
        """
        check_depth(trial.depth_percent)
        text = haystack.read(self.haystack)
        ground = self.ground(tokenizer, trial.context_tokens, trial.seed, text)
        return self.planted(tokenizer, ground, trial)

    def recalled(self, response: str, prompt: Prompt) -> bool:
        """Whether the code occurs in ``response``, upper and lower case apart."""
        return prompt.answer in response

    def ground(self, tokenizer: Tokenizer, context_tokens: int, seed: int, text: str) -> Ground:
        """What the trials of one length and seed share.

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
        """The shortest context that has room whatever the wording and the code, in tokens."""

        def taken(wording: Wording) -> int:
            head, tail = frame(tokenizer, wording)
            # A character of the code takes one token at most; the sentence may split once more on each side.
            needle = len(needle_ids(tokenizer, wording, "")) + CODE_CHARS + 2
            return len(head) + len(tail) + len(self.begun_ids(tokenizer, tail, wording)) + needle

        return max(map(taken, WORDINGS)) + MIN_HAYSTACK_TOKENS

    def planted(self, tokenizer: Tokenizer, ground: Ground, trial: Trial) -> Prompt:
        """The shared ground with a trial's own code at the trial's depth."""
        rng = stable_random("niah", trial.context_tokens, trial.seed, float(trial.depth_percent))
        code, needle = fitting_code(tokenizer, ground, rng)
        at = haystack.place(tokenizer, ground.hay, trial.depth_percent)
        begin = len(ground.head) + at
        context = (*ground.head, *ground.hay[:at], *needle, *ground.hay[at:])
        input_ids = (*context, *ground.tail, *ground.begun)
        prompt = Prompt(
            input_ids=input_ids,
            needle=range(begin, begin + len(needle)),
            answer=code,
            context_end=len(context),
            begun=ground.wording.begun if self.begin_answer else "",
            text=haystack.decode(tokenizer, list(input_ids)),
        )
        verify(tokenizer, prompt, trial, ground.wording.needle.format(code=code))
        return prompt


def draw_code(rng: random.Random) -> str:
    """A code of ``CODE_CHARS`` capitals and digits with at least one of each."""
    while True:
        code = "".join(rng.choice(CODE_ALPHABET) for _ in range(CODE_CHARS))
        if not code.isalpha() and not code.isdigit():
            return code


def fitting_code(tokenizer: Tokenizer, ground: Ground, rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """A code whose needle is as long as the ground leaves room for, and that needle's ids.

    Raises:
        PromptError: no such code within 10 000 draws. One was drawn before, so this is hardly ever met.
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
    """Ids of the needle sentence with the space that parts it from the text before."""
    return encoded(tokenizer, " " + wording.needle.format(code=code))


def frame(tokenizer: Tokenizer, wording: Wording) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after the haystack."""
    return framed(tokenizer, HEAD, TAIL.format(question=wording.question))


def refuse_special(tokenizer: Tokenizer, hay: tuple[int, ...], text: str, source: str) -> None:
    """Raises:
    PromptError: the haystack spells out a special token, which would change the structure of the prompt.
    """
    for token in set(hay).intersection(tokenizer.all_special_ids):
        spelled = haystack.decode(tokenizer, [token])
        # The token for unknown characters is special too, but the text does not spell it.
        if spelled in text:
            raise PromptError(
                f"haystack {source} holds {spelled!r}, a special token of this tokenizer. Remove it from the text."
            )


def verify(tokenizer: Tokenizer, prompt: Prompt, trial: Trial, sentence: str) -> None:
    """Reads the prompt back, as the model will.

    Raises:
        PromptError: the length is wrong, or the needle or its code does not stand in it exactly once.
    """
    count = len(prompt.input_ids)
    if count != trial.context_tokens:
        raise PromptError(f"the prompt came out {count} tokens long, not {trial.context_tokens}; please report this.")
    span = haystack.decode(tokenizer, list(prompt.input_ids[prompt.needle.start : prompt.needle.stop]))
    for what, piece in (("code", prompt.answer), ("needle", sentence)):
        found = prompt.text.count(piece)
        if found != 1 or piece not in span:
            raise PromptError(
                f"the {what} {piece!r} stands {found} times in the decoded prompt and must stand there once. "
                f"If more often: the haystack has it already; use another haystack or seed. If not: this "
                f"tokenizer does not give text back as it was (lower case, unknown characters); use another."
            )
