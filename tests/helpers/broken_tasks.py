"""Tasks of a stranger, each broken in one way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from helpers import sound_parts as sound
from kvfw.core.contracts.task import Prompt, Tokenizer, Trial


class OneMore(sound.Sum):
    """Forgets one token."""

    def made(self, tokenizer: Tokenizer, ids: tuple[int, ...], needle: range, answer: str, end: int) -> Prompt:
        return super().made(tokenizer, (*ids, ids[-1]), needle, answer, end)


class Hashing(sound.Sum):
    """Draws by the hash of a text, which differs from process to process."""

    def answer(self, trial: Trial) -> str:
        return str(random.Random(hash(repr(trial))).randrange(10**6, 10**7))


class LateNeedle(sound.Sum):
    """Gives the needle's place in another text."""

    def made(self, tokenizer: Tokenizer, ids: tuple[int, ...], needle: range, answer: str, end: int) -> Prompt:
        return super().made(tokenizer, ids, range(needle.start + 9, needle.stop + 9), answer, end)


class Telling(sound.Sum):
    """Says the needle twice."""

    def made(self, tokenizer: Tokenizer, ids: tuple[int, ...], needle: range, answer: str, end: int) -> Prompt:
        twice = (*ids[: needle.start], *ids[needle.start : needle.stop] * 2, *ids[needle.stop + len(needle) :])
        return super().made(tokenizer, twice[: len(ids)], needle, answer, end)


class Generous(sound.Sum):
    """Counts silence as right."""

    def recalled(self, response: str, prompt: Prompt) -> bool:
        return response in prompt.answer


class Unchecked(sound.Sum):
    """Takes every setting."""

    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None:
        return None


class Unseeded(sound.Sum):
    """Every repetition has the same answer."""

    def answer(self, trial: Trial) -> str:
        return super().answer(replace(trial, seed=0))
