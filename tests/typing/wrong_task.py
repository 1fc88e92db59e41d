"""Tasks with one fault each."""

from collections.abc import Iterator
from typing import ClassVar

from kvfw import MetricInfo, Part, Sample, Task, Tokenizer, Turn


class NeverChecks(Part):
    scores: ClassVar[tuple[MetricInfo, ...]] = ()

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        yield Sample(id="a", group="a", facets={}, context_ids=(1,))  # E: Missing positional argument "turns"

    def score(self, response: str, sample: Sample, turn: Turn) -> dict[str, float]:
        return {"right": float(turn.reply in response)}  # E: "Turn" has no attribute "reply"


class ReturnsText(Part):
    scores: ClassVar[tuple[MetricInfo, ...]] = ()

    def check(self) -> None: ...

    def samples(self, tokenizer: Tokenizer) -> list[str]:
        return tokenizer.encode("text")  # E: Incompatible return value type (got "list[int]", expected "list[str]")

    def score(self, response: str, sample: Sample, turn: Turn) -> float:
        sample.id = "b"  # E: Property "id" defined in "Sample" is read-only
        return 1.0


never: Task = NeverChecks()  # E: Incompatible types # N: is missing following "Task" protocol member # N: check
text: Task = ReturnsText()  # E: Incompatible types # N: -> Iterable[Sample] # N: turn: Turn) -> float
