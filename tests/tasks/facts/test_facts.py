"""The facts task: stories, places, lengths and scoring."""

from __future__ import annotations

import random

import pytest

from kvfw.errors import PromptError
from kvfw.tasks.facts.facts import Facts
from kvfw.tasks.facts.stories import PLACES, first_place, told
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


@pytest.mark.parametrize("facts", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_following_the_needed_sentences_gives_the_answer(facts: int, seed: int) -> None:
    story = told(random.Random(seed), facts)
    assert len(story.sentences) == 2 * facts
    needed = [story.sentences[index] for index in story.needed]
    assert len(needed) == facts
    who, at = None, {}
    for words in (sentence.rstrip(".").split() for sentence in needed):
        if words[1] == "went":
            at[words[0]] = words[-1]
        else:
            who = words[-1] if words[1] == "gave" else words[0]
    asked = story.question.removeprefix("Where is ").rstrip("?")
    assert at[who or asked] == story.answer
    # The other sentences are about other people, things and places.
    others = " ".join(each for index, each in enumerate(story.sentences) if index not in story.needed)
    assert story.answer not in others
    assert asked not in others


def test_facts_stand_in_the_text_in_order_and_spans_are_the_needed_ones() -> None:
    tokenizer = SuiteTokenizer()
    task = Facts(contexts=(700,), facts=(3,), seeds=3)
    for sample in task.samples(tokenizer):
        (turn,) = sample.turns
        assert len(sample.context_ids) + len(turn.exact_ids) == 700
        spelled = [tokenizer.decode([sample.context_ids[i] for i in span]).strip() for span in sample.spans]
        assert len(spelled) == 3
        assert "picked up" in spelled[0]
        assert "gave" in spelled[1]
        assert turn.references[0] in spelled[2]
        assert [span.start for span in sample.spans] == sorted(span.start for span in sample.spans)


def test_samples_are_the_same_every_time_and_differ_by_seed() -> None:
    task = Facts(contexts=(600,), facts=(1, 2), seeds=2)
    first, again = list(task.samples(SuiteTokenizer())), list(task.samples(SuiteTokenizer()))
    assert first == again
    assert len({sample.context_ids for sample in first}) == 4


@pytest.mark.parametrize(
    ("response", "place"),
    [(" garden.", "garden"), ("It is in the Kitchen, not the garden", "kitchen"), ("nobody knows", None), ("", None)],
)
def test_the_first_place_named_counts(response: str, place: str | None) -> None:
    assert first_place(response) == place
    task = Facts(contexts=(600,), seeds=1)
    (sample,) = task.samples(SuiteTokenizer())
    right = sample.turns[0].references[0]
    wrong = next(each for each in PLACES if each != right)
    assert task.score(f" {right}, {wrong}", sample, sample.turns[0]) == {"accuracy": 1.0}
    assert task.score(f" {wrong}, {right}", sample, sample.turns[0]) == {"accuracy": 0.0}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Facts(facts=(4,)), "give 1, 2 or 3"),
        (Facts(facts=()), "none given"),
        (Facts(contexts=(600, 600)), "given twice"),
        (Facts(contexts=(90,)), "too short"),
    ],
)
def test_impossible_options_are_refused(task: Facts, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        list(task.samples(SuiteTokenizer()))
