"""What the chains ask for: a list to copy, and steps whose states are to be written down."""

import random
from dataclasses import dataclass
from typing import Final

#: Short common nouns; most are one token, so that a slip is a lost item and not a spelling mistake.
# fmt: off
WORDS: Final = (
    "apple", "bread", "bridge", "candle", "castle", "chair", "circle", "cloud", "corner", "desert", "doctor",
    "dragon", "engine", "farmer", "father", "feather", "finger", "forest", "garden", "glass", "hammer", "island",
    "jacket", "kitchen", "ladder", "leather", "letter", "lion", "market", "mirror", "mother", "mountain", "needle",
    "ocean", "orange", "paper", "pencil", "pepper", "pocket", "prince", "queen", "rabbit", "ribbon", "river",
    "rocket", "sailor", "school", "shadow", "silver", "sister", "spider", "spring", "summer", "table", "temple",
    "thunder", "tiger", "tower", "valley", "village", "wagon", "water", "window", "winter",
)
# fmt: on


@dataclass(frozen=True)
class ChainText:
    """One chain: the context's text, the question, and the items of the answer in order."""

    context: str
    question: str
    items: tuple[str, ...]


def copied(rng: random.Random, items: int) -> ChainText:
    """A numbered list of words to be repeated; words occur again only after all were drawn."""
    drawn: list[str] = []
    while len(drawn) < items:
        drawn += rng.sample(WORDS, len(WORDS))
    words = tuple(drawn[:items])
    return ChainText(
        f"Here is a numbered list of words.\n\n{numbered(words)}",
        "\n\nRepeat the whole list, every number and every word, in the same order.",
        words,
    )


def stepped(rng: random.Random, items: int) -> ChainText:
    """Steps on a row of squares, each forward by 1 to 3; the answer is the square after each step."""
    steps = [rng.randint(1, 3) for _ in range(items)]
    squares = tuple(str(sum(steps[: done + 1])) for done in range(items))
    moves = numbered([f"forward {step}" for step in steps])
    return ChainText(
        f"A piece starts on square 0 and is moved, one step after the other.\n\n{moves}",
        "\n\nWrite down the number of the square after each step.",
        squares,
    )


def numbered(items: tuple[str, ...] | list[str]) -> str:
    """The items on lines of their own, counted from 1."""
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1))
