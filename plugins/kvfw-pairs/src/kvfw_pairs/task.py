"""Key-value retrieval: a list of ``key: value`` lines, and a question that asks for the value of one key."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from kvfw import (
    MetricInfo,
    Part,
    PromptError,
    Sample,
    Tokenizer,
    Turn,
    begun_ids,
    check_grid,
    decoded,
    encoded,
    framed,
    grid_sample,
    stable_random,
)

HEAD = "Below is a list of keys and their values, one pair a line. A question about one of them comes at the end.\n"
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
MIN_LINES = 8
DRAWS = 10_000


@dataclass(frozen=True)
class Ground:
    """What all samples of one length and seed share: the lines around the one that is asked for, and its size."""

    lines: tuple[tuple[int, ...], ...]
    texts: frozenset[str]
    asked_tokens: int


class Pairs(Part):
    """Key-value retrieval: lines such as ``korami: 48213`` fill the context, and one key's value must come back.

    Keys are random words of three syllables, values random numbers of three to six digits; the one asked for has six.
    It stands where ``depth`` percent of the other lines' tokens come before it, to the nearest line. The other lines
    depend on length and seed, the pair asked for on the depth as well. ``recall`` is 1 where the value occurs in the
    response as a number of its own.

    Source: Liu et al. 2023, Lost in the Middle, arXiv 2307.03172.

    Deviations: words and numbers in lines in place of a JSON object of random identifiers, which small models cannot
    copy; the prompt has an exact number of tokens.
    """

    contexts: tuple[int, ...] = Field((1024,), description="lengths of the whole prompt, tokens")
    depths: tuple[float, ...] = Field((10.0, 30.0, 50.0, 70.0, 90.0), description="places of the line, percent")
    seeds: int = Field(1, ge=1, le=1000, description="lists per length, numbered from 0")
    begin_answer: bool = Field(True, description="begin the answer for the model, up to the value")

    scores: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="recall", title="Recall", unit="%", proportion=True, digits=1, higher_is_better=True, primary=True
        ),
    )

    def check(self) -> None:
        """See :class:`kvfw.Task`."""
        check_grid(self.contexts, self.depths)

    def samples(self, tokenizer: Tokenizer) -> Iterator[Sample]:
        """See :class:`kvfw.Task`."""
        self.check()
        for context in self.contexts:
            for seed in range(self.seeds):
                ground = self.ground(tokenizer, context, seed)
                for depth in self.depths:
                    yield self.sample(tokenizer, ground, context, depth, seed)

    def sample(self, tokenizer: Tokenizer, ground: Ground, context: int, depth: float, seed: int) -> Sample:
        """The shared lines with a pair of the sample's own at its depth.

        Raises:
            PromptError: no pair fits, or the tokenizer does not give the line back as it was.
        """
        rng = stable_random("pairs", context, seed, depth)
        for _ in range(DRAWS):
            key, value = word(rng), number(rng, 6)
            head, line, tail, begun = self.pieces(tokenizer, key, value)
            size = len(head) + len(line) + len(tail) + len(begun)
            if size == ground.asked_tokens and not {key, value} & ground.texts:
                break
        else:
            raise PromptError(f"no pair of {ground.asked_tokens} tokens found; choose another seed or context")
        wanted = depth / 100 * sum(map(len, ground.lines))
        starts = [sum(map(len, ground.lines[:at])) for at in range(len(ground.lines) + 1)]
        at = min(range(len(starts)), key=lambda index: abs(starts[index] - wanted))
        before = (*head, *(token for other in ground.lines[:at] for token in other))
        rest = tuple(token for other in ground.lines[at:] for token in other)
        sample = grid_sample(context, depth, seed, before, line, rest, tail, begun, reference=value)
        text = decoded(tokenizer, sample.context_ids + sample.turns[0].exact_ids)
        if text.count(f"{key}: {value}") != 1 or text.count(value) != 1:
            raise PromptError(f"this tokenizer does not give the line {f'{key}: {value}'!r} back; use another")
        return sample

    def score(self, response: str, sample: Sample, turn: Turn) -> Mapping[str, float]:
        """See :class:`kvfw.Task`."""
        return {"recall": float(re.search(rf"(?<!\d){turn.references[0]}(?!\d)", response) is not None)}

    def ground(self, tokenizer: Tokenizer, context: int, seed: int) -> Ground:
        """The shared lines: as many as there is room for, the last ones drawn until the length is exact.

        Raises:
            PromptError: the context has no room.
        """
        rng = stable_random("pairs", context, seed)
        asked = sum(map(len, self.pieces(tokenizer, word(rng), number(rng, 6))))
        texts: set[str] = set()
        lines: list[tuple[int, ...]] = []
        room = context - asked
        lengths = [len(line_ids(tokenizer, word(rng), number(rng, rng.randint(3, 6)))) for _ in range(64)]
        shortest, longest = min(lengths), max(lengths)
        if room < MIN_LINES * longest:
            raise PromptError(
                f"a context of {context} tokens is too short: the question takes {asked} and {MIN_LINES} "
                f"lines of {longest} are the least. Ask for at least {asked + MIN_LINES * longest} tokens"
            )
        for _ in range(DRAWS):
            key, value = word(rng), number(rng, rng.randint(3, 6))
            line = line_ids(tokenizer, key, value)
            # The last line has to end the room exactly: what is left must always be a sum of lengths that lines have.
            rest = room - len(line)
            if -(-rest // longest) * shortest <= rest and not {key, value} & texts:
                texts |= {key, value}
                lines.append(line)
                room = rest
            if room == 0:
                return Ground(tuple(lines), frozenset(texts), asked)
        raise PromptError(f"no lines of this tokenizer fill {context} tokens exactly; choose another seed or context")

    def pieces(self, tokenizer: Tokenizer, key: str, value: str) -> tuple[tuple[int, ...], ...]:
        """Ids of the head, of the line asked for, of the question, and of the begun answer."""
        head, tail = framed(tokenizer, HEAD, f"\n\nWhat is the value of {key}?")
        begun = begun_ids(tokenizer, tail, f"{key}:" if self.begin_answer else "")
        return head, line_ids(tokenizer, key, value), tail, begun


def line_ids(tokenizer: Tokenizer, key: str, value: str) -> tuple[int, ...]:
    """Ids of a line with the line break before it."""
    return encoded(tokenizer, f"\n{key}: {value}")


def word(rng: random.Random) -> str:
    """Three syllables."""
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3))


def number(rng: random.Random, digits: int) -> str:
    """A number of so many digits."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))
