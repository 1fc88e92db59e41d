"""Small stories in plain sentences: who went where, who took or gave what."""

import random
from dataclasses import dataclass
from typing import Final

PEOPLE: Final = ("Mary", "John", "Daniel", "Sandra", "Peter", "Helen")
PLACES: Final = ("kitchen", "garden", "office", "bathroom", "hallway", "bedroom")
THINGS: Final = ("apple", "book", "hammer", "milk", "letter", "ball")


@dataclass(frozen=True)
class Story:
    """Sentences in order, which of them the answer needs, the question, the begun answer and the answer."""

    sentences: tuple[str, ...]
    needed: tuple[int, ...]
    question: str
    begun: str
    answer: str


def told(rng: random.Random, facts: int) -> Story:
    """A story whose question needs ``facts`` of its sentences, 1 to 3, among as many that lead nowhere.

    1: a person went somewhere. 2: a person took a thing, and went somewhere. 3: took it, gave it to another, who went
    somewhere.
    """
    people = rng.sample(PEOPLE, 4)
    places, (thing, other) = rng.sample(PLACES, 2), rng.sample(THINGS, 2)
    real = _chain(people[:2], thing, places[0], facts)
    false = _chain(people[2:], other, places[1], facts)
    # The two stories interleaved, each in its own order.
    turns = [True] * facts + [False] * facts
    rng.shuffle(turns)
    rest = {True: iter(real), False: iter(false)}
    sentences = tuple(next(rest[mine]) for mine in turns)
    about = people[0] if facts == 1 else f"the {thing}"
    begun = f"{about} went to the" if facts == 1 else f"The {thing} is in the"
    needed = tuple(index for index, mine in enumerate(turns) if mine)
    return Story(sentences, needed, f"Where is {about}?", begun, places[0])


def _chain(people: list[str], thing: str, place: str, facts: int) -> list[str]:
    first, second = people
    if facts == 1:
        return [f"{first} went to the {place}."]
    if facts == 2:
        return [f"{first} picked up the {thing}.", f"{first} went to the {place}."]
    return [
        f"{first} picked up the {thing}.",
        f"{first} gave the {thing} to {second}.",
        f"{second} went to the {place}.",
    ]


def first_place(response: str) -> str | None:
    """The first place that a response names; None if it names none."""
    lower = response.lower()
    found = [(lower.index(place), place) for place in PLACES if place in lower]
    return min(found)[1] if found else None
