"""Published benchmarks from a file the user brings: prompts cut in the middle, scored by the benchmarks' own rules."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.tasks.jsonl.formats import KNOWN, Line, read_lines
from kvfw.tasks.jsonl.scoring import RULES
from kvfw.tasks.prompting import encoded, framed

HEAD = "Read the text below and answer the question about it, as briefly as you can.\n\n"


class Jsonl(Part):
    """Your own copy of LongBench, LongBench v2, InfiniteBench, SCBench, AIME or MATH: a JSONL file, one record a line.

    The record's data set decides the rule: F1 of words for questions, ROUGE-L for summaries, classes named, numbers,
    edit similarity of a line of code, the letter of a choice, the last ``boxed`` answer; the best of several
    references counts. A context longer than ``length`` tokens loses its middle; both ends stay. Records with several
    questions become several turns about one context.

    Source: LongBench, Bai et al. 2023, arXiv 2308.14508; LongBench v2, Bai et al. 2024, arXiv 2412.15204;
    InfiniteBench, Zhang et al. 2024, arXiv 2402.13718; SCBench, Li et al. 2024, arXiv 2412.10319.

    Deviations: the wording of prompts is kvfw's, one for all data sets; only English data sets; ROUGE-L without
    stemming; the letter of a choice only as "answer is (X)" or at the start of the response. Figures do not compare
    with published ones.
    """

    file: str = Field(description="path of the JSONL file", examples=["qasper.jsonl"])
    format: Literal["longbench", "longbench_v2", "infinitebench", "scbench", "math"] = Field(
        "longbench", description="whose records the file holds"
    )
    dataset: str = Field("", description="name of the data set, where records do not have it")
    length: int = Field(4096, ge=64, description="longest context, tokens; longer ones lose their middle")
    limit: int = Field(0, ge=0, description="records used, from the first; 0: all")
    _lines: tuple[Line, ...] = PrivateAttr()

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="score", title="Score", unit="%", digits=1, higher_is_better=True, primary=True),
    )

    def model_post_init(self, context: Any, /) -> None:
        """Reads and checks the file.

        Raises:
            ValueError: the file cannot be read, or a line, named with its number, is no record of the format.
        """
        self._lines = read_lines(Path(self.file), self.format, self.dataset)

    def check(self) -> None:
        """Nothing is left to check: the file was read with the options."""

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """A sample per record."""
        for line in self._lines[: self.limit or None]:
            frames = [framed(tokenizer, HEAD, f"\n\n{one.question}") for one in line.asked]
            yield Sample(
                id=f"line-{line.number}",
                group=f"{line.dataset}/{line.number}",
                facets={"dataset": line.dataset},
                context_ids=frames[0][0] + middle_cut(encoded(tokenizer, line.context), self.length),
                turns=tuple(
                    Turn(tail, (), one.references, KNOWN[line.dataset][1])
                    for (_, tail), one in zip(frames, line.asked, strict=True)
                ),
            )

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """``score``: by the rule of the sample's data set, 0 to 1."""
        dataset = str(sample.facets["dataset"])
        line = next(line for line in self._lines if sample.id == f"line-{line.number}")
        return {"score": RULES[KNOWN[dataset][0]](response, turn.references, line.classes)}


def middle_cut(ids: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The first and last halves of ``length`` tokens if there are more; the last is longer by one of an odd number."""
    if len(ids) <= length:
        return ids
    first = length // 2
    return ids[:first] + ids[len(ids) - (length - first) :]
