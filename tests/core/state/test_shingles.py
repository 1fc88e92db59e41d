"""Passages that two texts share are found whatever their case, punctuation and place."""

import random

from kvfw.core.state.shingles import ALLOWED, shared, sketch


def words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefgh", k=4)) for _ in range(count))


def test_a_copied_passage_is_found_in_another_layout() -> None:
    book, passage = words(1, 20_000), words(2, 400)
    assert shared(sketch(book + passage.upper().replace(" ", ",\n")), sketch(passage)) > 0.95


def test_independent_texts_share_nothing() -> None:
    assert shared(sketch(words(1, 20_000)), sketch(words(2, 20_000))) == 0 < ALLOWED


def test_a_text_too_short_to_tell_shares_nothing() -> None:
    assert shared(sketch("seven words are no passage of eight"), sketch(words(1, 100))) == 0
