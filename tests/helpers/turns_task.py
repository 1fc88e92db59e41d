"""A task of several questions about one context, and of a text to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part

QUESTIONS = (" What is said of the sea?", " And what of the land?", " Go on:")
FOLLOWED = " wide and grey"


class Turns(Part):
    """Two samples without a stratum, each with two questions and a text to follow."""

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="words", title="Words", higher_is_better=True, primary=True),
        MetricInfo(name="silent", title="Silent", proportion=True),
    )

    def check(self) -> None:
        return None

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        for name in ("whale", "ship"):
            context = tokenizer.encode(f"The {name} swam on through the deep green water. " * 40)[:300]
            asked = [tuple(tokenizer.encode(question, add_special_tokens=False)) for question in QUESTIONS]
            follow = tuple(tokenizer.encode(FOLLOWED, add_special_tokens=False))
            turns = [Turn(ids, references=("sea",), max_new_tokens=3 + i) for i, ids in enumerate(asked[:2])]
            yield Sample(name, name, {"animal": name}, tuple(context), (*turns, Turn(asked[2], follow_ids=follow)))

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"silent": float(not response), "words": float(len(response.split()))}


class Wrong(Turns):
    """Leaves one of its scores out."""

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"words": 1.0}


class Single(Turns):
    """Each question with a copy of the context of its own."""

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        for sample in super().samples(tokenizer):
            for number, turn in enumerate(sample.turns):
                yield Sample(f"{sample.id}-{number}", sample.group, sample.facets, sample.context_ids, (turn,))
