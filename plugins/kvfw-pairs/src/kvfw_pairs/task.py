"""Key-value retrieval: a list of ``key: value`` lines, and a question that asks for the value of one key."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from kvfw import (
    Part,
    Prompt,
    PromptError,
    Tokenizer,
    Trial,
    begun_ids,
    check_depth,
    check_grid,
    decoded,
    encoded,
    framed,
    stable_random,
)

HEAD = "Below is a list of keys and their values, one pair a line. A question about one of them comes at the end.\n"
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
MIN_LINES = 8
DRAWS = 10_000


@dataclass(frozen=True)
class Ground:
    """What all trials of one length and seed share: the lines around the one that is asked for, and its size."""

    lines: tuple[tuple[int, ...], ...]
    texts: frozenset[str]
    asked_tokens: int


class Pairs(Part):
    """Key-value retrieval: lines such as ``korami: 48213`` fill the context, and one key's value must come back.

    Keys are random words of three syllables, values random numbers of three to six digits; the one asked for has six.
    It stands where ``depth`` percent of the other lines' tokens come before it, to the nearest line. The other lines
    depend on length and seed, the pair asked for on the whole trial.

    Source: Liu et al. 2023, Lost in the Middle, arXiv 2307.03172.

    Deviations: words and numbers in lines in place of a JSON object of random identifiers, which small models cannot
    copy; the prompt has an exact number of tokens.
    """

    begin_answer: bool = Field(True, description="begin the answer for the model, up to the value")

    def check_settings(self, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]) -> None:
        """See :class:`kvfw.Task`."""
        check_grid(contexts, depths, seeds)

    def check(
        self, tokenizer: Tokenizer, contexts: Sequence[int], depths: Sequence[float], seeds: Sequence[int]
    ) -> None:
        """See :class:`kvfw.Task`. Builds every prompt once, so that nothing can go wrong later."""
        self.check_settings(contexts, depths, seeds)
        for trial in (Trial(context, depth, seed) for context in contexts for depth in depths for seed in seeds):
            self.prompt(tokenizer, trial)

    def prompt(self, tokenizer: Tokenizer, trial: Trial) -> Prompt:
        """See :class:`kvfw.Task`."""
        check_depth(trial.depth_percent)
        ground = self.ground(tokenizer, trial)
        rng = stable_random("pairs", trial.context_tokens, trial.seed, float(trial.depth_percent))
        for _ in range(DRAWS):
            key, value = word(rng), number(rng, 6)
            head, line, tail, begun = self.pieces(tokenizer, key, value)
            size = len(head) + len(line) + len(tail) + len(begun)
            if size == ground.asked_tokens and not {key, value} & ground.texts:
                break
        else:
            raise PromptError(f"no pair of {ground.asked_tokens} tokens found; choose another seed or context")
        wanted = trial.depth_percent / 100 * sum(map(len, ground.lines))
        starts = [sum(map(len, ground.lines[:at])) for at in range(len(ground.lines) + 1)]
        at = min(range(len(starts)), key=lambda index: abs(starts[index] - wanted))
        before = (*head, *(token for other in ground.lines[:at] for token in other))
        context = (*before, *line, *(token for other in ground.lines[at:] for token in other))
        ids = (*context, *tail, *begun)
        prompt = Prompt(
            input_ids=ids,
            needle=range(len(before), len(before) + len(line)),
            answer=value,
            context_end=len(context),
            begun=f"{key}:" if self.begin_answer else "",
            text=decoded(tokenizer, ids),
        )
        if prompt.text.count(f"{key}: {value}") != 1 or prompt.text.count(value) != 1:
            raise PromptError(f"this tokenizer does not give the line {f'{key}: {value}'!r} back; use another")
        return prompt

    def recalled(self, response: str, prompt: Prompt) -> bool:
        """Whether the value occurs in ``response`` as a number of its own."""
        return re.search(rf"(?<!\d){prompt.answer}(?!\d)", response) is not None

    def ground(self, tokenizer: Tokenizer, trial: Trial) -> Ground:
        """The shared lines: as many as there is room for, the last ones drawn until the length is exact.

        Raises:
            PromptError: the context has no room.
        """
        rng = stable_random("pairs", trial.context_tokens, trial.seed)
        asked = sum(map(len, self.pieces(tokenizer, word(rng), number(rng, 6))))
        texts: set[str] = set()
        lines: list[tuple[int, ...]] = []
        room = trial.context_tokens - asked
        lengths = [len(line_ids(tokenizer, word(rng), number(rng, rng.randint(3, 6)))) for _ in range(64)]
        shortest, longest = min(lengths), max(lengths)
        if room < MIN_LINES * longest:
            raise PromptError(
                f"a context of {trial.context_tokens} tokens is too short: the question takes {asked} and {MIN_LINES} "
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
        raise PromptError(
            f"no lines of this tokenizer fill {trial.context_tokens} tokens exactly; choose another seed or context"
        )

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
