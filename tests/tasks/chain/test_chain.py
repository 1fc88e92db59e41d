"""The chains' contents, lengths and scoring."""

from __future__ import annotations

import pytest

from kvfw.errors import PromptError
from kvfw.tasks.chain.chain import Chain
from kvfw.tasks.chain.wording import WORDS, stepped
from kvfw.tasks.prompting import stable_random
from kvfw.verify.instruments.tokenizer import SuiteTokenizer


def test_the_context_holds_the_list_and_the_answer_continues_its_first_number() -> None:
    tokenizer = SuiteTokenizer()
    first, second = Chain(items=(5,), seeds=2).samples(tokenizer)
    (turn,) = first.turns
    context = tokenizer.decode(list(first.context_ids))
    assert context.endswith("\n2." + turn.references[0])
    assert turn.references != second.turns[0].references
    assert context.endswith(tokenizer.decode(list(turn.begun_ids)).strip() + turn.references[0])
    assert turn.max_new_tokens > len(tokenizer.encode(turn.references[0], add_special_tokens=False))


def test_a_long_list_repeats_a_word_only_after_all_were_named() -> None:
    (sample,) = Chain(items=(len(WORDS) + 4,), seeds=1).samples(SuiteTokenizer())
    context = SuiteTokenizer().decode(list(sample.context_ids))
    words = [line.rpartition(" ")[2] for line in context.splitlines()[3:]]
    assert len(words) == len(WORDS) + 4
    assert sorted(words[: len(WORDS)]) == sorted(WORDS)


def test_squares_are_running_sums_of_the_steps() -> None:
    chain = stepped(stable_random("a"), 6)
    steps = [int(line.rpartition(" ")[2]) for line in chain.context.splitlines()[2:]]
    assert [int(item) for item in chain.items] == [sum(steps[: n + 1]) for n in range(6)]


@pytest.mark.parametrize(
    ("response", "prefix", "items"),
    [
        (" apple\n3. bread\n4. cloud\n5. lion", 1.0, 1.0),
        (" Apple \n3. bread\n4. lion\n5. lion\n\nDone.", 0.5, 0.75),
        (" bread\n3. bread\n3. cloud\n4. cloud", 0.0, 0.5),
        (" apple\n4. cloud", 0.25, 0.5),
        ("", 0.0, 0.0),
    ],
)
def test_items_count_at_their_own_number(response: str, prefix: float, items: float) -> None:
    task = Chain(items=(4,), seeds=1)
    (sample,) = task.samples(SuiteTokenizer())
    turn = sample.turns[0].__class__((1,), references=(" apple\n3. bread\n4. cloud\n5. lion",))
    assert task.score(response, sample, turn) == {"prefix": prefix, "items_right": items}


@pytest.mark.parametrize(
    ("task", "says"),
    [(Chain(kinds=()), "kinds"), (Chain(kinds=("copy", "copy")), "at most once"), (Chain(items=(1,)), "no chain")],
)
def test_impossible_options_are_refused(task: Chain, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        task.check()
