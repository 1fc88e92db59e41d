"""Chains: answers as long as the prompt, in which every item needs the prompt again."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field

from kvfw.core.contracts.records import MetricInfo
from kvfw.core.contracts.task import Sample, Tokenizer, Turn
from kvfw.core.parts.part import Part
from kvfw.errors import PromptError
from kvfw.tasks.chain.wording import copied, numbered, stepped
from kvfw.tasks.prompting import begun_ids, check_distinct, encoded, framed, stable_random

Kind = Literal["copy", "steps"]
MAKERS: Final = {"copy": copied, "steps": stepped}
#: The answer is begun up to here: with only the first number, small models write it again.
BEGUN: Final = "2."
#: Tokens a response may be longer than the right one.
SPARE_TOKENS: Final = 8
ITEM: Final = re.compile(r"(?:^|\n)\s*(\d+)\.\s*([^\n]*)")


class Chain(Part):
    """Long answers: copy a list back item by item, or write down a state after each of many steps.

    ``copy``: a numbered list of common words comes back with its numbers. ``steps``: a piece moves forward by 1 to 3
    squares at a time; the answer is the square after each step. Answers are begun with the first item and are about as
    long as the prompt, so that what is lost shows late in them, also with ``compress_every``. ``prefix`` is the share
    of items, of the second to the last, right before the first wrong one; ``items_right`` the share that stands right
    at its own number.

    The metric ``agreement`` keeps its value for each token of the full cache's answer: agreement by position.

    Source: kvfw's own; after the memory tests of decode-phase methods (copying lists, states of a machine).
    """

    kinds: tuple[Kind, ...] = Field(("copy",), description="copy, steps")
    items: tuple[int, ...] = Field((18,), description="items of the list, or steps")
    seeds: int = Field(8, ge=1, le=1000, description="samples per kind and number of items, numbered from 0")

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(name="prefix", title="Right prefix", unit="%", digits=1, higher_is_better=True, primary=True),
        MetricInfo(name="items_right", title="Items right", unit="%", digits=1, higher_is_better=True),
    )

    def check(self) -> None:
        """See :class:`~kvfw.core.contracts.task.Task`.

        Raises:
            PromptError: no kind or number of items, or one given twice; fewer than 2 items.
        """
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise PromptError(
                f"kinds: {list(self.kinds)}; give each of {', '.join(MAKERS)} at most once, and one of them"
            )
        check_distinct("items", self.items)
        for items in self.items:
            if items < 2:
                raise PromptError(f"items: {items} is no chain; give at least 2")

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """Every seed of every number of items of every kind."""
        self.check()
        for kind in self.kinds:
            for items in self.items:
                for seed in range(self.seeds):
                    chain = MAKERS[kind](stable_random("chain", kind, items, seed), items)
                    head, tail = framed(tokenizer, chain.context, chain.question)
                    begun = f"{numbered(chain.items[:1])}\n{BEGUN}"
                    answer = numbered(chain.items).removeprefix(begun)
                    yield Sample(
                        id=f"{kind}-{items}-{seed}",
                        group=f"{kind}-{items}/{seed}",
                        facets={"kind": kind, "items": items, "seed": seed},
                        context_ids=head,
                        turns=(
                            Turn(
                                tail,
                                begun_ids(tokenizer, tail, begun),
                                (answer,),
                                len(encoded(tokenizer, answer)) + SPARE_TOKENS,
                            ),
                        ),
                    )

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """``prefix`` and ``items_right``, shares of the items."""
        wanted, found = listed(turn.references[0]), listed(response)
        right = [found.get(number) == item for number, item in wanted.items()]
        return {
            "prefix": (right.index(False) if False in right else len(right)) / len(right),
            "items_right": sum(right) / len(right),
        }


def listed(response: str) -> dict[int, str]:
    """Items by number of an answer begun with ``2.``; the first of a number counts, case and spaces do not."""
    found: dict[int, str] = {}
    for number, item in ITEM.findall(BEGUN + response):
        found.setdefault(int(number), item.strip().lower())
    return found
