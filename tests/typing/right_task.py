"""A task."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from kvfw import Facet, MetricInfo, Part, PromptError, Sample, Task, Tokenizer, Turn


class Echo(Part):
    length: int = 8
    scores: ClassVar[tuple[MetricInfo, ...]] = (MetricInfo(name="echo", title="Echo", primary=True),)

    def check(self) -> None:
        if self.length < 2:
            raise PromptError(f"a context of {self.length} tokens is too short; ask for 2 or more")

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        ids = tuple(tokenizer.encode("echo " * self.length, add_special_tokens=False)[: self.length])
        facets: dict[str, Facet] = {"length": self.length, "word": "echo"}
        yield Sample("echo", "echo", facets, ids[1:], (Turn(ids[:1], references=("echo",)),), spans=(range(1),))

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        return {"echo": float(turn.references[0] in response)}


echo: Task = Echo()
