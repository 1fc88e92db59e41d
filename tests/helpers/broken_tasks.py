"""Tasks of a stranger, each broken in one way."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from helpers import sound_parts as sound
from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn


class OneMore(sound.Sum):
    """Forgets one token."""

    def sample(self, tokenizer: Tokenizer, context: int, depth: float, seed: int) -> Sample:
        made = super().sample(tokenizer, context, depth, seed)
        return replace(made, context_ids=(*made.context_ids, made.context_ids[-1]))


class Hashing(sound.Sum):
    """Draws by the hash of a text, which differs from process to process."""

    def answer(self, *key: object) -> str:
        return str(random.Random(hash(repr(key))).randrange(10**6, 10**7))


class LateSpan(sound.Sum):
    """Gives the span's place in another text."""

    def sample(self, tokenizer: Tokenizer, context: int, depth: float, seed: int) -> Sample:
        made = super().sample(tokenizer, context, depth, seed)
        return replace(made, spans=tuple(range(span.start + 9, span.stop + 9) for span in made.spans))


class OneName(sound.Sum):
    """Calls every sample the same."""

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        return (replace(sample, id="sample") for sample in super().samples(tokenizer))


class Facetless(sound.Sum):
    """Leaves out a facet where it is 0."""

    def sample(self, tokenizer: Tokenizer, context: int, depth: float, seed: int) -> Sample:
        made = super().sample(tokenizer, context, depth, seed)
        return replace(made, facets={name: value for name, value in made.facets.items() if value})


class Unasked(sound.Sum):
    """Does not say what is right."""

    def sample(self, tokenizer: Tokenizer, context: int, depth: float, seed: int) -> Sample:
        made = super().sample(tokenizer, context, depth, seed)
        return replace(made, turns=(replace(made.turns[0], references=()),))


class Unranked(sound.Sum):
    """Does not say which score counts."""

    scores: ClassVar[tuple[MetricInfo, ...]] = (MetricInfo(name="right", title="Right", higher_is_better=True),)


class Chatty(sound.Sum):
    """Answers a score that it does not announce."""

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {**super().score(response, sample, turn), "words": float(len(response.split()))}


class Generous(sound.Sum):
    """Counts silence as right."""

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"right": float(response in turn.references[0])}


class Stern(sound.Sum):
    """Takes its own reference for wrong."""

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"right": float(response == f"It is {turn.references[0]}.")}


class Unchecked(sound.Sum):
    """Takes every option."""

    def check(self) -> None:
        return None


class Unseeded(sound.Sum):
    """Every repetition has the same answer."""

    def answer(self, *key: object) -> str:
        return super().answer(*key[:-1])
